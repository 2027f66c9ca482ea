# torchmdla for programs in C++: the target torchmdla::torchmdla, the library for the libtorch that find_package(Torch) finds.
#
# It stands before libtorch on the command line of the linker, which is how torch::jit::load comes to find packages; so a
# program that names ${TORCH_LIBRARIES} itself names them after it.
include(CMakeFindDependencyMacro)
find_dependency(Torch)

get_filename_component(_torchmdla_package "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
string(REGEX REPLACE "^([0-9]+)\\.([0-9]+).*" "torch_\\1_\\2" _torchmdla_folder "${Torch_VERSION}")
set(_torchmdla_library "${_torchmdla_package}/${_torchmdla_folder}/libtorchmdla.so")
if(NOT EXISTS "${_torchmdla_library}")
  set(torchmdla_FOUND FALSE)
  set(torchmdla_NOT_FOUND_MESSAGE "this copy of torchmdla has no library for torch ${Torch_VERSION}")
  return()
endif()

if(NOT TARGET torchmdla::torchmdla)
  add_library(torchmdla::torchmdla SHARED IMPORTED)
  set_target_properties(
    torchmdla::torchmdla
    PROPERTIES IMPORTED_LOCATION "${_torchmdla_library}"
               INTERFACE_INCLUDE_DIRECTORIES "${_torchmdla_package}/include"
               INTERFACE_LINK_LIBRARIES "${TORCH_LIBRARIES}"
               # A program that names none of our functions needs it all the same.
               INTERFACE_LINK_OPTIONS "LINKER:--no-as-needed")
endif()

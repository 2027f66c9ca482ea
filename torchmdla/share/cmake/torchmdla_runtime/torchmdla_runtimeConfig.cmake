# The runtime of models without PyTorch, for programs in C and C++: the target torchmdla_runtime::torchmdla_runtime.
get_filename_component(_torchmdla_package "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
get_filename_component(_torchmdla_runtime "${_torchmdla_package}/../torchmdla_runtime/libtorchmdla_runtime.so" ABSOLUTE)
if(NOT EXISTS "${_torchmdla_runtime}")
  set(torchmdla_runtime_FOUND FALSE)
  set(torchmdla_runtime_NOT_FOUND_MESSAGE "there is no ${_torchmdla_runtime}")
  return()
endif()

if(NOT TARGET torchmdla_runtime::torchmdla_runtime)
  add_library(torchmdla_runtime::torchmdla_runtime SHARED IMPORTED)
  set_target_properties(
    torchmdla_runtime::torchmdla_runtime
    PROPERTIES IMPORTED_LOCATION "${_torchmdla_runtime}" IMPORTED_NO_SONAME ON
               INTERFACE_INCLUDE_DIRECTORIES "${_torchmdla_package}/include")
endif()

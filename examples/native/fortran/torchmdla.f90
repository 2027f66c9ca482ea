! Models of torchmdla in Fortran: the C interface in torchmdla/runtime.h, through iso_c_binding.
!
! The indices of a tensor are those of the Fortran array: element (i, j) of an array is element [i-1, j-1] of the
! tensor. Sections such as a(1:10:2, :) are passed without a copy by this module. The runtime copies where its code
! needs the order of C.
module torchmdla
  use, intrinsic :: iso_c_binding
  implicit none
  private
  public :: model_t, session_t, argument_t, argument, value_t

  integer, parameter :: max_rank = 8
  integer(c_int32_t), parameter :: api_version = 2, dtype_float32 = 6
  ! Numbers of tmdla_kind.
  integer(c_int32_t), parameter :: kind_boolean = 1, kind_integer = 2, kind_real = 3, kind_tensor = 5

  type, bind(c) :: c_options
    integer(c_int32_t) :: version, threads, any_owner
  end type

  type, bind(c) :: c_tensor
    type(c_ptr) :: data
    integer(c_int32_t) :: dtype, rank
    type(c_ptr) :: sizes, strides
  end type

  ! The union of tmdla_value is an integer here: the bits of a number, or an address.
  type, bind(c) :: c_value
    integer(c_int32_t) :: kind, unused
    integer(c_size_t) :: count
    integer(c_int64_t) :: payload
  end type

  ! Argument of a method. A tensor refers to the caller's array, which must have the attribute target and exist until
  ! the call returns.
  type :: argument_t
    private
    integer(c_int32_t) :: kind = 0
    integer(c_int64_t) :: payload = 0
    type(c_ptr) :: data = c_null_ptr
    integer(c_int32_t) :: rank = 0
    integer(c_int64_t) :: sizes(max_rank) = 1, strides(max_rank) = 1
  end type

  interface argument
    module procedure of_integer, of_real, of_logical, of_vector, of_matrix, of_cube
  end interface

  ! Result of a method. It is valid until the next call of the session.
  type :: value_t
    private
    type(c_value), pointer :: content => null()
  contains
    procedure :: count => value_count
    procedure :: item
    procedure :: to_integer
    procedure :: to_real
    procedure :: read_tensor
  end type

  type :: model_t
    private
    type(c_ptr) :: handle = c_null_ptr
  contains
    procedure :: load
    procedure :: free => free_model
  end type

  ! Calls of a model with the state that its methods write. One thread at a time may use a session.
  type :: session_t
    private
    type(c_ptr) :: model = c_null_ptr, handle = c_null_ptr
  contains
    procedure :: create
    procedure :: call => call_method
    procedure :: free => free_session
  end type

  interface
    function tmdla_load(path, options, model) bind(c) result(status)
      import
      character(kind=c_char), intent(in) :: path(*)
      type(c_options), intent(in) :: options
      type(c_ptr), intent(out) :: model
      integer(c_int) :: status
    end function

    subroutine tmdla_free(model) bind(c)
      import
      type(c_ptr), value :: model
    end subroutine

    function tmdla_last_error() bind(c) result(text)
      import
      type(c_ptr) :: text
    end function

    function tmdla_find_method(model, name, method) bind(c) result(status)
      import
      type(c_ptr), value :: model
      character(kind=c_char), intent(in) :: name(*)
      integer(c_size_t), intent(out) :: method
      integer(c_int) :: status
    end function

    function tmdla_session_create(model, session) bind(c) result(status)
      import
      type(c_ptr), value :: model
      type(c_ptr), intent(out) :: session
      integer(c_int) :: status
    end function

    subroutine tmdla_session_free(session) bind(c)
      import
      type(c_ptr), value :: session
    end subroutine

    function tmdla_call(session, method, arguments, argument_count, result) bind(c) result(status)
      import
      type(c_ptr), value :: session
      integer(c_size_t), value :: method, argument_count
      type(c_value), intent(in) :: arguments(*)
      type(c_ptr), intent(out) :: result
      integer(c_int) :: status
    end function

    function strlen(text) bind(c) result(length)
      import
      type(c_ptr), value :: text
      integer(c_size_t) :: length
    end function
  end interface

contains

  ! Load the model in a file. threads is 0 for one thread for each CPU. An error is returned in `error`, or ends the
  ! program if that is absent.
  subroutine load(self, path, threads, error)
    class(model_t), intent(inout) :: self
    character(*), intent(in) :: path
    integer, intent(in), optional :: threads
    character(:), allocatable, intent(out), optional :: error
    type(c_options) :: options

    options = c_options(api_version, 0, 0)
    if (present(threads)) options%threads = threads
    if (tmdla_load(path // c_null_char, options, self%handle) == 0) return
    if (.not. present(error)) call stop_with_last_error()
    error = last_error()
  end subroutine

  ! Free the model, after its sessions.
  subroutine free_model(self)
    class(model_t), intent(inout) :: self

    call tmdla_free(self%handle)
    self%handle = c_null_ptr
  end subroutine

  ! Make a session with the state of the file.
  subroutine create(self, model, error)
    class(session_t), intent(inout) :: self
    type(model_t), intent(in) :: model
    character(:), allocatable, intent(out), optional :: error

    self%model = model%handle
    if (tmdla_session_create(model%handle, self%handle) == 0) return
    if (.not. present(error)) call stop_with_last_error()
    error = last_error()
  end subroutine

  subroutine free_session(self)
    class(session_t), intent(inout) :: self

    call tmdla_session_free(self%handle)
    self%handle = c_null_ptr
  end subroutine

  ! Call a method. A program's own exception is an error, too.
  subroutine call_method(self, method, arguments, result, error)
    class(session_t), intent(inout) :: self
    character(*), intent(in) :: method
    type(argument_t), intent(in), target :: arguments(:)
    type(value_t), intent(out) :: result
    character(:), allocatable, intent(out), optional :: error
    type(c_tensor), target :: tensors(size(arguments))
    type(c_value) :: values(size(arguments))
    type(c_ptr) :: address
    integer(c_size_t) :: number
    integer(c_int) :: status
    integer :: i

    do i = 1, size(arguments)
      values(i) = c_value(arguments(i)%kind, 0, 0, arguments(i)%payload)
      if (arguments(i)%kind /= kind_tensor) cycle
      tensors(i) = c_tensor(arguments(i)%data, dtype_float32, arguments(i)%rank, &
                            c_loc(arguments(i)%sizes), c_loc(arguments(i)%strides))
      values(i)%payload = to_integer_address(c_loc(tensors(i)))
    end do
    status = tmdla_find_method(self%model, method // c_null_char, number)
    if (status == 0) status = tmdla_call(self%handle, number, values, size(arguments, kind=c_size_t), address)
    if (status == 0) then
      call c_f_pointer(address, result%content)
      return
    end if
    if (.not. present(error)) call stop_with_last_error()
    error = last_error()
  end subroutine

  subroutine stop_with_last_error()
    character(:), allocatable :: reason

    reason = last_error()
    error stop reason
  end subroutine

  function last_error() result(text)
    character(:), allocatable :: text
    character(kind=c_char), pointer :: characters(:)
    type(c_ptr) :: address
    integer :: i

    address = tmdla_last_error()
    call c_f_pointer(address, characters, [strlen(address)])
    allocate (character(size(characters)) :: text)
    do i = 1, size(characters)
      text(i:i) = characters(i)
    end do
  end function

  ! Arguments

  function of_integer(number) result(passed)
    integer, intent(in) :: number
    type(argument_t) :: passed

    passed%kind = kind_integer
    passed%payload = number
  end function

  function of_real(number) result(passed)
    real(c_double), intent(in) :: number
    type(argument_t) :: passed

    passed%kind = kind_real
    passed%payload = transfer(number, passed%payload)
  end function

  function of_logical(flag) result(passed)
    logical, intent(in) :: flag
    type(argument_t) :: passed

    passed%kind = kind_boolean
    passed%payload = merge(1, 0, flag)
  end function

  function of_vector(values) result(passed)
    real(c_float), intent(in), target :: values(:)
    type(argument_t) :: passed

    passed = new_tensor(shape(values))
    if (size(values) == 0) return
    passed%data = c_loc(values(1))
    if (size(values) > 1) passed%strides(1) = distance(c_loc(values(1)), c_loc(values(2)))
  end function

  function of_matrix(values) result(passed)
    real(c_float), intent(in), target :: values(:, :)
    type(argument_t) :: passed

    passed = new_tensor(shape(values))
    if (size(values) == 0) return
    passed%data = c_loc(values(1, 1))
    if (size(values, 1) > 1) passed%strides(1) = distance(c_loc(values(1, 1)), c_loc(values(2, 1)))
    if (size(values, 2) > 1) passed%strides(2) = distance(c_loc(values(1, 1)), c_loc(values(1, 2)))
  end function

  function of_cube(values) result(passed)
    real(c_float), intent(in), target :: values(:, :, :)
    type(argument_t) :: passed

    passed = new_tensor(shape(values))
    if (size(values) == 0) return
    passed%data = c_loc(values(1, 1, 1))
    if (size(values, 1) > 1) passed%strides(1) = distance(c_loc(values(1, 1, 1)), c_loc(values(2, 1, 1)))
    if (size(values, 2) > 1) passed%strides(2) = distance(c_loc(values(1, 1, 1)), c_loc(values(1, 2, 1)))
    if (size(values, 3) > 1) passed%strides(3) = distance(c_loc(values(1, 1, 1)), c_loc(values(1, 1, 2)))
  end function

  function new_tensor(sizes) result(passed)
    integer, intent(in) :: sizes(:)
    type(argument_t) :: passed

    passed%kind = kind_tensor
    passed%rank = size(sizes)
    passed%sizes(:size(sizes)) = sizes
  end function

  ! Return the number of float32 between two addresses.
  integer(c_int64_t) function distance(first, second)
    type(c_ptr), intent(in) :: first, second

    distance = (to_integer_address(second) - to_integer_address(first)) / 4
  end function

  integer(c_int64_t) function to_integer_address(address)
    type(c_ptr), intent(in) :: address

    to_integer_address = transfer(address, to_integer_address)
  end function

  type(c_ptr) function to_address(number)
    integer(c_int64_t), intent(in) :: number

    to_address = transfer(number, to_address)
  end function

  ! Results

  ! Return the number of items of a list, a tuple or a dictionary.
  integer function value_count(self)
    class(value_t), intent(in) :: self

    value_count = int(self%content%count)
  end function

  ! Return item i, from 1 on, of a list, a tuple or a dictionary.
  type(value_t) function item(self, i)
    class(value_t), intent(in) :: self
    integer, intent(in) :: i
    type(c_value), pointer :: items(:)

    call c_f_pointer(to_address(self%content%payload), items, [self%content%count])
    item%content => items(i)
  end function

  integer(c_int64_t) function to_integer(self)
    class(value_t), intent(in) :: self

    to_integer = self%content%payload
  end function

  real(c_double) function to_real(self)
    class(value_t), intent(in) :: self

    to_real = transfer(self%content%payload, to_real)
  end function

  ! Copy a tensor of float32: its sizes, and its elements in the order of C (the last index varies fastest). For a
  ! matrix, transpose(reshape(values, [sizes(2), sizes(1)])) is the Fortran array.
  subroutine read_tensor(self, values, sizes)
    class(value_t), intent(in) :: self
    real(c_float), allocatable, intent(out) :: values(:)
    integer(c_int64_t), allocatable, intent(out) :: sizes(:)
    type(c_tensor), pointer :: tensor
    real(c_float), pointer :: elements(:)
    integer(c_int64_t), pointer :: extents(:)

    if (self%content%kind /= kind_tensor) error stop "read_tensor: the value is not a tensor"
    call c_f_pointer(to_address(self%content%payload), tensor)
    if (tensor%dtype /= dtype_float32) error stop "read_tensor: the tensor's dtype is not float32"
    call c_f_pointer(tensor%sizes, extents, [tensor%rank])
    sizes = extents
    call c_f_pointer(tensor%data, elements, [product(sizes)])
    values = elements
  end subroutine
end module

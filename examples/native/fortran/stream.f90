! Streams numbers in a file through a model, a chunk a call, and prints the first number of each result:
!
!     gfortran torchmdla.f90 stream.f90 $(python -m torchmdla_runtime) -o stream
!     ./stream model.tmdla numbers.bin 512
!
! The model's method is forward(x: Tensor) -> Tensor, with x of the sizes [1, 512]. It may have a state.
program stream
  use, intrinsic :: iso_c_binding
  use torchmdla
  implicit none
  type(model_t) :: model
  type(session_t) :: session
  type(value_t) :: result
  real(c_float), allocatable, target :: chunk(:, :)
  real(c_float), allocatable :: values(:)
  integer(c_int64_t), allocatable :: sizes(:)
  character(:), allocatable :: error
  character(1024) :: text
  integer :: unit, status, length

  if (command_argument_count() /= 3) then
    print '(a)', "usage: stream model.tmdla numbers.bin length"
    stop 2
  end if
  call get_command_argument(3, text)
  read (text, *) length
  allocate (chunk(1, length))

  call get_command_argument(1, text)
  call model%load(trim(text), threads=1)
  call session%create(model)
  call get_command_argument(2, text)
  open (newunit=unit, file=trim(text), access="stream", form="unformatted", action="read", status="old")
  do
    read (unit, iostat=status) chunk
    if (status /= 0) exit
    call session%call("forward", [argument(chunk)], result, error)
    if (allocated(error)) error stop error
    call result%read_tensor(values, sizes)
    print '(es16.9)', values(1)
  end do
  call session%free()
  call model%free()
end program

"""Table of PyTorch's tests that the CPU passes and the device ``acap`` does not, with the reasons.

A name is that of a class, or of a class and a test function. It covers all tests that PyTorch makes from the class or
the function: their names continue it after ``.`` or ``_``.
"""

from __future__ import annotations

from collections.abc import Mapping

_SPARSE = "acap refuses sparse tensors"
_QUANTISED = "acap refuses quantised tensors"
_NESTED = "acap refuses nested tensors"
_CPU_ONLY = "PyTorch implements the method for tensors on the CPU only"
_CUDA_ONLY = "the test calls an operator that PyTorch has for CUDA only, and on the CPU another one"
_NUMPY = "NumPy and Python's buffers share memory with tensors on the CPU only"
_NAMES = "the test expects the name or the tensor class of the CPU, or of CUDA"
_COPY_ON_WRITE = "the test checks the flag of storages that PyTorch copies on a write, and acap copies by its graph"
_AT_READ = "acap raises errors that depend on elements when the result is read"
_INDUCTOR = "the test compiles with inductor, which does not generate code for acap"
_LIKE_CUDA = "the test expects CUDA's result of each device but the CPU, and acap has the CPU's"
_TWO_DEVICES = "the test mixes tensors of two devices on each device but CUDA, and PyTorch rejects that"

LISTED: Mapping[str, str] = {
    "NumpyTests.test_trivial_fancy_out_of_bounds": _AT_READ,
    "TestAutogradDeviceType.test_sparse": _SPARSE,
    "TestAutogradMultipleDispatch.test_autograd_composite_implicit_and_dispatch_registration": _NESTED,
    "TestAutogradMultipleDispatch.test_autograd_multiple_dispatch_registrations": _NESTED,
    "TestBinaryUfuncs.test_fmod_remainder_by_zero_integral": _LIKE_CUDA,
    "TestBinaryUfuncs.test_pow_float16": _LIKE_CUDA,
    "TestBufferProtocol": _NUMPY,
    "TestLinalg.test__int4_mm": _CUDA_ONLY,
    "TestLinalg.test_compile_int4_mm": _INDUCTOR,
    "TestLinalg.test_eig_with_nan": _AT_READ,
    "TestLinalg.test_linalg_lstsq_input_checks": _LIKE_CUDA,
    "TestLinalg.test_lobpcg": _SPARSE,
    "TestLinalg.test_pca_lowrank": _SPARSE,
    "TestLinalg.test_svd_lowrank": _SPARSE,
    "TestNNDeviceType.test_TransformerEncoderLayer_empty": _NESTED,
    "TestNNDeviceType.test_one_hot": _AT_READ,
    "TestNNDeviceType.test_transformerencoderlayer": _LIKE_CUDA,
    "TestNNDeviceType.test_upsamplingBiMode2d_nonsupported_dtypes": _LIKE_CUDA,
    "TestOldViewOps.test_flatten": _QUANTISED,
    "TestOldViewOps.test_ravel": _QUANTISED,
    "TestScatterGather.test_gather_backward_with_empty_index_tensor_sparse_grad_True": _SPARSE,
    "TestSortAndSelect.test_stable_sort_against_numpy": _TWO_DEVICES,
    "TestTensorCreation.test_tensor_ctor_device_inference": _SPARSE,
    "TestTorchDeviceType.test_broadcast_fn_map": _CPU_ONLY,
    "TestTorchDeviceType.test_broadcast_fn_map2": _CPU_ONLY,
    "TestTorchDeviceType.test_grad_scaler_deprecated_warning": _NAMES,
    "TestTorchDeviceType.test_grad_scaling_state_dict": _NAMES,
    "TestTorchDeviceType.test_grad_scaling_unscale_sparse": _SPARSE,
    "TestTorchDeviceType.test_lazy_clone": _COPY_ON_WRITE,
    "TestTorchDeviceType.test_memory_format_empty_like": _SPARSE,
    "TestTorchDeviceType.test_parallel_cow_materialize_error": _COPY_ON_WRITE,
    "TestTorchDeviceType.test_tensor_storage_type": _NAMES,
    "TestTypePromotion.test_sparse": _SPARSE,
}


def reason(test: str) -> str:
    """Return the reason why a test is expected to fail; empty if it must pass."""
    name = test
    while name and name not in LISTED:
        name = name[: max(name.rfind("_"), name.rfind("."), 0)]
    return LISTED.get(name, "")

"""Table of PyTorch's tests that the CPU passes and the device ``acap`` does not, with the reasons.

A name is that of a class, or of a class and a test function. It covers all tests that PyTorch makes from the class or
the function: their names continue it after ``.`` or ``_``.
"""

from __future__ import annotations

from collections.abc import Mapping

_SPARSE = "acap refuses sparse tensors"
_QUANTISED = "acap refuses quantised tensors"
_CPU_ONLY = "PyTorch implements the method for tensors on the CPU only"
_NUMPY = "NumPy and Python's buffers share memory with tensors on the CPU only"
_NAMES = "the test expects the name or the tensor class of the CPU, or of CUDA"
_READS = "the test reads thousands of numbers one by one, and acap runs a graph for each"
_WARNINGS = "PyTorch warns when it makes a tensor, and acap infers the types of equal calls once"
_ALPHA = "a fault: types of a sum are inferred once for alpha=True and alpha=1.1, and the second one must raise"

LISTED: Mapping[str, str] = {
    "TestBufferProtocol": _NUMPY,
    "TestOldViewOps.test_flatten": _QUANTISED,
    "TestOldViewOps.test_ravel": _QUANTISED,
    "TestTensorCreation.test_tensor_ctor_device_inference": _SPARSE,
    "TestTorchDeviceType.test_broadcast_fn_map": _CPU_ONLY,
    "TestTorchDeviceType.test_broadcast_fn_map2": _CPU_ONLY,
    "TestTorchDeviceType.test_complex_half_experimental_warning": _WARNINGS,
    "TestTorchDeviceType.test_gather_backward_deterministic_path": _READS,
    "TestTorchDeviceType.test_grad_scaler_deprecated_warning": _NAMES,
    "TestTorchDeviceType.test_grad_scaling_state_dict": _NAMES,
    "TestTorchDeviceType.test_grad_scaling_unscale_sparse": _SPARSE,
    "TestTorchDeviceType.test_index_copy_deterministic": _READS,
    "TestTypePromotion.test_alpha_mismatch": _ALPHA,
    "TestTypePromotion.test_many_promotions": _READS,
    "TestTypePromotion.test_sparse": _SPARSE,
}


def reason(test: str) -> str:
    """Return the reason why a test is expected to fail; empty if it must pass."""
    name = test
    while name and name not in LISTED:
        name = name[: max(name.rfind("_"), name.rfind("."), 0)]
    return LISTED.get(name, "")

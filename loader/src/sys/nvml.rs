//! The two calls of NVML that `nvml-wrapper` does not wrap: the JPEG engine's utilisation, and the number of a MIG part.

#![expect(unsafe_code, reason = "calls of a C library")]

use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper::{Device, Nvml};

/// Busy share of the JPEG engine in per cent.
///
/// # Errors
///
/// What NVML says, and [`NvmlError::FailedToLoadSymbol`] from drivers before 530.
pub fn jpg_utilization(nvml: &Nvml, device: &Device<'_>) -> Result<u32, NvmlError> {
    let call = nvml.lib().nvmlDeviceGetJpgUtilization.as_ref().map_err(missing)?;
    let (mut share, mut period_us) = (0, 0);
    // SAFETY: the handle is used for this call alone, while `device` and the library it borrows live.
    let handle = unsafe { device.handle() };
    // SAFETY:
    // - `call` is the symbol of that name, with the signature of nvml.h, in a library that `nvml` keeps loaded;
    // - the handle is a live device of the same library, and both pointers are to locals that outlive the call.
    nvml_try(unsafe { call(handle, &raw mut share, &raw mut period_us) })?;
    Ok(share)
}

/// The number by which the whole GPU knows a MIG part, for its performance counters.
///
/// # Errors
///
/// What NVML says; for a whole GPU that it is none.
pub fn gpu_instance_id(nvml: &Nvml, device: &Device<'_>) -> Result<u32, NvmlError> {
    let call = nvml.lib().nvmlDeviceGetGpuInstanceId.as_ref().map_err(missing)?;
    let mut id = 0;
    // SAFETY: as above.
    let handle = unsafe { device.handle() };
    // SAFETY:
    // - `call` is the symbol of that name, with the signature of nvml.h, in a library that `nvml` keeps loaded;
    // - the handle is a live device of the same library, and the pointer is to a local that outlives the call.
    nvml_try(unsafe { call(handle, &raw mut id) })?;
    Ok(id)
}

fn missing(error: &impl std::fmt::Display) -> NvmlError {
    NvmlError::FailedToLoadSymbol(error.to_string())
}

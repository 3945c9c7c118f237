//! What an error of a device means.

use candle_core::Error;

/// Whether the device has no memory left for a pass. By type where the error has one: the driver and cuBLAS each say it in
/// their own way, and cuBLAS without the words. Words for what others wrapped.
pub fn is_out_of_memory(error: &Error) -> bool {
    match error {
        Error::Context { inner, .. } | Error::WithPath { inner, .. } | Error::WithBacktrace { inner, .. } => {
            is_out_of_memory(inner)
        }
        #[cfg(feature = "cuda")]
        Error::Cuda(cuda) if is_full(cuda.as_ref()) => true,
        other => says_so(&other.to_string()),
    }
}

/// Whether a message is about that.
pub fn says_so(message: &str) -> bool {
    message.to_lowercase().contains("out of memory")
}

#[cfg(feature = "cuda")]
fn is_full(error: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    use candle_core::cuda::{
        CudaError,
        cudarc::{cublas::sys::cublasStatus_t, driver::sys::CUresult},
    };
    match error.downcast_ref::<CudaError>() {
        Some(CudaError::Cuda(driver)) => driver.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY,
        Some(CudaError::Cublas(cublas)) => cublas.0 == cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapped_or_not_it_is_told_from_other_failures() {
        let full = || Error::Msg("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")".into());
        assert!(is_out_of_memory(&full()));
        assert!(is_out_of_memory(&full().context("a pass").with_path("p")));
        assert!(!is_out_of_memory(&Error::Msg("an illegal memory access".into()).context("out of memory?")));
        #[cfg(feature = "cuda")]
        {
            use candle_core::cuda::{
                CudaError,
                cudarc::cublas::{result::CublasError, sys::cublasStatus_t},
            };
            let cublas = |status| Error::from(CudaError::from(CublasError(status)));
            assert!(is_out_of_memory(&cublas(cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED)));
            assert!(!is_out_of_memory(&cublas(cublasStatus_t::CUBLAS_STATUS_EXECUTION_FAILED)));
        }
    }
}

//! Functions of the CUDA driver, resolved at run time, and its error codes.
//!
//! The function types are cudarc's, which `const` items below check at compile time. cudarc's own
//! functions are not called, for three reasons: they panic if the driver lacks a function; they
//! return an enum, which is undefined behaviour for a code that is newer than the enum; and they
//! look for `libcuda.so` first, which development packages install and which may be the toolkit's
//! stub. Here a missing function is an error, and an error code is an integer.

#![expect(non_snake_case, reason = "the driver's own names")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::fmt;
use std::ptr;
use std::sync::OnceLock;

use cudarc::driver::sys::{
    self, CUDA_KERNEL_NODE_PARAMS, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent,
    CUflushGPUDirectRDMAWritesScope, CUflushGPUDirectRDMAWritesTarget, CUfunction, CUfunction_attribute, CUgraph,
    CUgraphExec, CUgraphNode, CUmodule, CUpointer_attribute, CUresult, CUstream,
};

/// File names of the driver library, in the order tried. The name without a version belongs to
/// development packages and may be the toolkit's stub.
#[cfg(not(windows))]
const LIBRARY_NAMES: &[&str] = &["libcuda.so.1", "libcuda.so"];
#[cfg(windows)]
const LIBRARY_NAMES: &[&str] = &["nvcuda.dll"];

/// Symbol that only the emulated driver of the tests exports.
const EMULATOR_MARKER: &[u8] = b"portcullis_emulated_driver\0";

macro_rules! functions {
    (
        required { $($required:ident($($required_type:ty),*);)* }
        optional { $($optional:ident($($optional_type:ty),*);)* }
    ) => {
        /// Functions of the driver library.
        pub(crate) struct Driver {
            /// Whether this is the emulated driver of the tests.
            pub is_emulated: bool,
            $(pub $required: unsafe extern "C" fn($($required_type),*) -> c_int,)*
            $(pub $optional: Option<unsafe extern "C" fn($($optional_type),*) -> c_int>,)*
        }

        $(const _: unsafe fn($($required_type),*) -> CUresult = sys::$required;)*
        $(const _: unsafe fn($($optional_type),*) -> CUresult = sys::$optional;)*

        impl Driver {
            fn load() -> Result<Driver, DriverUnavailable> {
                // SAFETY: loading the driver runs its initialisers, as in any CUDA program.
                let library = LIBRARY_NAMES.iter().find_map(|name| unsafe { libloading::Library::new(name) }.ok());
                // Never unloaded: the driver's threads, and threads of abandoned sessions, may be
                // in it.
                let library: &'static libloading::Library =
                    Box::leak(Box::new(library.ok_or(DriverUnavailable::LibraryNotFound)?));
                // SAFETY: the symbol is looked up and not used.
                let is_emulated = unsafe { library.get::<*const ()>(EMULATOR_MARKER) }.is_ok();
                let mut missing = Vec::new();
                $(
                    // SAFETY: cudarc generates the type from CUDA's header. Only the result
                    // differs: an enum there, which has the representation of a C `int`.
                    let $required = unsafe { library.get(stringify!($required).as_bytes()) }.map(|f| *f);
                    let $required = $required.map_err(|_| missing.push(stringify!($required)));
                )*
                $(
                    // SAFETY: as above.
                    let $optional = unsafe { library.get(stringify!($optional).as_bytes()) }.map(|f| *f).ok();
                )*
                let ($(Ok($required),)*) = ($($required,)*) else {
                    return Err(DriverUnavailable::FunctionsMissing(missing));
                };
                Ok(Driver { is_emulated, $($required,)* $($optional,)* })
            }
        }
    };
}

functions! {
    required {
        cuInit(c_uint);
        cuDriverGetVersion(*mut c_int);
        cuGetErrorName(CUresult, *mut *const c_char);
        cuGetErrorString(CUresult, *mut *const c_char);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGet(*mut CUdevice, c_int);
        cuDeviceGetName(*mut c_char, c_int, CUdevice);
        cuDeviceTotalMem_v2(*mut usize, CUdevice);
        cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
        cuDeviceGetPCIBusId(*mut c_char, c_int, CUdevice);
        cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
        cuDevicePrimaryCtxRelease_v2(CUdevice);
        cuCtxPushCurrent_v2(CUcontext);
        cuCtxPopCurrent_v2(*mut CUcontext);
        cuMemAlloc_v2(*mut CUdeviceptr, usize);
        cuMemFree_v2(CUdeviceptr);
        cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        cuMemFreeHost(*mut c_void);
        cuMemHostRegister_v2(*mut c_void, usize, c_uint);
        cuMemHostUnregister(*mut c_void);
        cuPointerSetAttribute(*const c_void, CUpointer_attribute, CUdeviceptr);
        cuMemHostGetDevicePointer_v2(*mut CUdeviceptr, *mut c_void, c_uint);
        cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
        cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
        cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
        cuMemsetD8Async(CUdeviceptr, u8, usize, CUstream);
        cuStreamCreate(*mut CUstream, c_uint);
        cuStreamDestroy_v2(CUstream);
        cuStreamQuery(CUstream);
        cuStreamWaitEvent(CUstream, CUevent, c_uint);
        cuEventCreate(*mut CUevent, c_uint);
        cuEventDestroy_v2(CUevent);
        cuEventRecord(CUevent, CUstream);
        cuEventQuery(CUevent);
        cuEventElapsedTime(*mut f32, CUevent, CUevent);
        cuModuleLoadDataEx(*mut CUmodule, *const c_void, c_uint, *mut sys::CUjit_option, *mut *mut c_void);
        cuModuleUnload(CUmodule);
        cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
        cuFuncGetAttribute(*mut c_int, CUfunction_attribute, CUfunction);
        cuOccupancyMaxActiveBlocksPerMultiprocessor(*mut c_int, CUfunction, c_int, usize);
        cuLaunchKernel(
            CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void,
            *mut *mut c_void
        );
        cuGraphCreate(*mut CUgraph, c_uint);
        cuGraphDestroy(CUgraph);
        cuGraphAddKernelNode(*mut CUgraphNode, CUgraph, *const CUgraphNode, usize, *const CUDA_KERNEL_NODE_PARAMS);
        cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, c_ulonglong);
        cuGraphUpload(CUgraphExec, CUstream);
        cuGraphLaunch(CUgraphExec, CUstream);
        cuGraphExecDestroy(CUgraphExec);
    }
    // The first exists since CUDA 11.7; the dispatch method `waitvalue` needs it.
    optional {
        cuStreamWaitValue32_v2(CUstream, CUdeviceptr, sys::cuuint32_t, c_uint);
        cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget, CUflushGPUDirectRDMAWritesScope);
    }
}

/// Why the driver cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DriverUnavailable {
    /// No driver library was found.
    LibraryNotFound,
    /// The library lacks these functions: it is too old.
    FunctionsMissing(Vec<&'static str>),
}

#[cfg(not(windows))]
const NO_DRIVER: &str = "no CUDA driver on this machine (libcuda.so.1): install NVIDIA's driver (Debian's packages \
     nvidia-driver and libcuda1), or, in a container, let it see the GPU (`--gpus all`)";
#[cfg(windows)]
const NO_DRIVER: &str = "no CUDA driver on this machine (nvcuda.dll): install NVIDIA's driver";

impl fmt::Display for DriverUnavailable {
    /// Writes the reason and what to do about it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DriverUnavailable::LibraryNotFound => f.write_str(NO_DRIVER),
            DriverUnavailable::FunctionsMissing(missing) => write!(
                f,
                "the CUDA driver of this machine lacks {}: CUDA 11.4 or newer is needed, that is NVIDIA's driver 470 \
                 or newer",
                missing.join(", ")
            ),
        }
    }
}

/// An error code: the driver's `CUresult`, or one of this crate's own, which are negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ErrorCode(pub c_int);

impl ErrorCode {
    pub const INVALID_VALUE: ErrorCode = ErrorCode(1);
    pub const OUT_OF_MEMORY: ErrorCode = ErrorCode(2);
    pub const STUB_LIBRARY: ErrorCode = ErrorCode(34);
    pub const NO_DEVICE: ErrorCode = ErrorCode(100);
    pub const INVALID_DEVICE: ErrorCode = ErrorCode(101);
    pub const INVALID_IMAGE: ErrorCode = ErrorCode(200);
    pub const NO_BINARY_FOR_GPU: ErrorCode = ErrorCode(209);
    pub const INVALID_PTX: ErrorCode = ErrorCode(218);
    pub const JIT_COMPILER_NOT_FOUND: ErrorCode = ErrorCode(221);
    pub const UNSUPPORTED_PTX_VERSION: ErrorCode = ErrorCode(222);
    pub const OPERATING_SYSTEM: ErrorCode = ErrorCode(304);
    pub const NOT_READY: ErrorCode = ErrorCode(600);
    pub const ALREADY_REGISTERED: ErrorCode = ErrorCode(712);
    pub const NOT_PERMITTED: ErrorCode = ErrorCode(800);
    pub const NOT_SUPPORTED: ErrorCode = ErrorCode(801);
    pub const SYSTEM_NOT_READY: ErrorCode = ErrorCode(802);
    pub const SYSTEM_DRIVER_MISMATCH: ErrorCode = ErrorCode(803);
    pub const COMPAT_NOT_SUPPORTED: ErrorCode = ErrorCode(804);
    pub const UNKNOWN: ErrorCode = ErrorCode(999);

    /// The caller's cancel token was used.
    pub const CANCELLED: ErrorCode = ErrorCode(-1);
    /// Resident kernels did not leave, or queued work did not end, in time for work that needs the
    /// device to be quiescent.
    pub const DEVICE_BUSY: ErrorCode = ErrorCode(-2);
    /// Work of an abandoned session did not end in time for work that needs the device to be
    /// quiescent.
    pub const ABANDONED_WORK: ErrorCode = ErrorCode(-3);

    /// What codes of refused pinned memory are counted down from.
    const UNPINNABLE: c_int = -1000;

    /// The error of host memory that could not be pinned if its cause, `self`, is a limit of the
    /// system's or of the user's; else `self`.
    pub fn of_pinning(self) -> ErrorCode {
        match self {
            ErrorCode::OUT_OF_MEMORY | ErrorCode::OPERATING_SYSTEM | ErrorCode::NOT_PERMITTED => {
                ErrorCode(Self::UNPINNABLE - self.0)
            }
            _ => self,
        }
    }

    /// Whether host memory could not be pinned ([`ErrorCode::of_pinning`]). Displayed as the cause.
    pub fn is_unpinnable(self) -> bool {
        self.0 < Self::UNPINNABLE
    }

    /// Whether the error is sticky: a kernel has failed, and every later call in the context fails
    /// as well (`cuda.h`, `CUresult`: "this leaves the process in an inconsistent state").
    pub fn is_sticky(self) -> bool {
        // From an illegal address to a failed launch, and errors of memory and NVLink.
        matches!(self.0, 700 | 702 | 710 | 714..=719 | 214 | 220)
    }
}

impl fmt::Display for ErrorCode {
    /// Writes the driver's name and description of the error.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ErrorCode::CANCELLED => return f.write_str("cancelled"),
            ErrorCode::DEVICE_BUSY => return f.write_str("the device is still busy with batches"),
            ErrorCode::ABANDONED_WORK => return f.write_str("the device is still busy with a batch that was given up"),
            _ => {}
        }
        let code = if self.is_unpinnable() { ErrorCode(Self::UNPINNABLE - self.0) } else { *self };
        let known = Driver::get().ok().and_then(|driver| Some((driver.error_name(code)?, driver.error_text(code)?)));
        match known {
            Some((name, text)) => write!(f, "{name}: {text}"),
            None => write!(f, "error {}, for which the driver has no name", code.0),
        }
    }
}

impl Driver {
    /// Returns the driver, loading it at the first call; it is never unloaded.
    ///
    /// # Errors
    /// [`DriverUnavailable`] if there is none, or if it is too old.
    pub fn get() -> Result<&'static Driver, DriverUnavailable> {
        static DRIVER: OnceLock<Result<Driver, DriverUnavailable>> = OnceLock::new();
        DRIVER.get_or_init(Driver::load).as_ref().map_err(DriverUnavailable::clone)
    }

    /// A device attribute; 0 if the driver does not know it.
    pub fn attribute(&self, device: CUdevice, attribute: CUdevice_attribute) -> c_int {
        let mut value = 0;
        // SAFETY: the pointer is to a number that outlives the call.
        let known = check(unsafe { (self.cuDeviceGetAttribute)(&mut value, attribute, device) });
        if known.is_ok() { value } else { 0 }
    }

    fn error_name(&self, code: ErrorCode) -> Option<String> {
        query_text(code, self.cuGetErrorName)
    }

    fn error_text(&self, code: ErrorCode) -> Option<String> {
        query_text(code, self.cuGetErrorString)
    }
}

/// Asks the driver for a text about an error code; `None` if the driver does not know the code.
fn query_text(code: ErrorCode, query: unsafe extern "C" fn(CUresult, *mut *const c_char) -> c_int) -> Option<String> {
    // Takes the code as an integer: a code that the enum lacks must not become a value of it.
    type Query = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;
    // SAFETY: cudarc's enum has the size and the representation of a C `int`.
    let query: Query = unsafe { std::mem::transmute(query) };
    let mut text = ptr::null();
    // SAFETY: the pointer outlives the call. The driver rejects codes that it does not know.
    let known = unsafe { query(code.0, &mut text) } == 0 && !text.is_null();
    // SAFETY: a static string of the driver's, terminated by a zero.
    known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// Turns a function's return value into a result.
pub(crate) fn check(code: c_int) -> Result<(), ErrorCode> {
    if code == 0 { Ok(()) } else { Err(ErrorCode(code)) }
}

const _: () = assert!(size_of::<CUresult>() == size_of::<c_int>());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unusable_driver_says_what_to_do() {
        assert!(DriverUnavailable::LibraryNotFound.to_string().contains("install NVIDIA's driver"));
        let text = DriverUnavailable::FunctionsMissing(vec!["cuGraphLaunch"]).to_string();
        assert!(text.contains("cuGraphLaunch") && text.contains("470 or newer"), "{text}");
    }
}

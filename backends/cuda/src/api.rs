//! CUDA's driver: its functions, found when the program runs, and its errors in words.
//!
//! The functions' types are cudarc's. Its own functions are not called: they panic where the driver is older than
//! a function, and take a number that a newer driver gives for one of their enum, which it may not be; and its search
//! begins with `libcuda.so`, the link of development packages, which may be the toolkit's stub. Here a function that is missing is an error, and an
//! error is a number. That each type is the one that cudarc has is checked when this is compiled.

#![expect(non_snake_case, reason = "the driver's own names")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::fmt;
use std::ptr;
use std::sync::OnceLock;

use cudarc::driver::sys::{
    self, CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY3D, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent,
    CUflushGPUDirectRDMAWritesScope, CUflushGPUDirectRDMAWritesTarget, CUfunction, CUfunction_attribute, CUgraph,
    CUgraphExec, CUgraphNode, CUmodule, CUpointer_attribute, CUresult, CUstream,
};

/// Names under which systems have the driver. The link without a number is of development packages, and may be the
/// toolkit's stub.
#[cfg(not(windows))]
const NAMES: &[&str] = &["libcuda.so.1", "libcuda.so"];
#[cfg(windows)]
const NAMES: &[&str] = &["nvcuda.dll"];

/// A symbol that the emulated driver of the tests has and no other.
const EMULATED: &[u8] = b"portcullis_emulated_driver\0";

macro_rules! functions {
    (
        needed { $($needed:ident($($needed_type:ty),*);)* }
        optional { $($optional:ident($($optional_type:ty),*);)* }
    ) => {
        /// The driver's functions.
        pub(crate) struct Driver {
            /// Whether it is the emulated one of the tests.
            pub is_emulated: bool,
            $(pub $needed: unsafe extern "C" fn($($needed_type),*) -> c_int,)*
            $(pub $optional: Option<unsafe extern "C" fn($($optional_type),*) -> c_int>,)*
        }

        $(const _: unsafe fn($($needed_type),*) -> CUresult = sys::$needed;)*
        $(const _: unsafe fn($($optional_type),*) -> CUresult = sys::$optional;)*

        impl Driver {
            fn load() -> Result<Driver, Absent> {
                // SAFETY: loading the driver runs its initialisation, which it is made for.
                let found = NAMES.iter().find_map(|name| unsafe { libloading::Library::new(name) }.ok());
                // Never unloaded: its threads, and those that were left behind in it, do not end.
                let library: &'static libloading::Library = Box::leak(Box::new(found.ok_or(Absent::Library)?));
                // SAFETY: whether it is there is all that is asked.
                let is_emulated = unsafe { library.get::<*const ()>(EMULATED) }.is_ok();
                let mut missing = Vec::new();
                $(
                    // SAFETY: the type is that of cudarc's function of this name, made from CUDA's own
                    // header, but for the result: an enum there, whose numbers are those of a C `int`.
                    let $needed = unsafe { library.get(stringify!($needed).as_bytes()) }.map(|f| *f);
                    let $needed = $needed.map_err(|_| missing.push(stringify!($needed)));
                )*
                $(
                    // SAFETY: as above.
                    let $optional = unsafe { library.get(stringify!($optional).as_bytes()) }.map(|f| *f).ok();
                )*
                let ($(Ok($needed),)*) = ($($needed,)*) else {
                    return Err(Absent::Functions(missing));
                };
                Ok(Driver { is_emulated, $($needed,)* $($optional,)* })
            }
        }
    };
}

functions! {
    needed {
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
        cuGraphAddMemcpyNode(*mut CUgraphNode, CUgraph, *const CUgraphNode, usize, *const CUDA_MEMCPY3D, CUcontext);
        cuGraphAddKernelNode(*mut CUgraphNode, CUgraph, *const CUgraphNode, usize, *const CUDA_KERNEL_NODE_PARAMS);
        cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, c_ulonglong);
        cuGraphExecMemcpyNodeSetParams(CUgraphExec, CUgraphNode, *const CUDA_MEMCPY3D, CUcontext);
        cuGraphUpload(CUgraphExec, CUstream);
        cuGraphLaunch(CUgraphExec, CUstream);
        cuGraphExecDestroy(CUgraphExec);
    }
    // The first two from CUDA 11.7 on: without them there is no `waitvalue`.
    optional {
        cuStreamWaitValue32_v2(CUstream, CUdeviceptr, sys::cuuint32_t, c_uint);
        cuStreamWriteValue32_v2(CUstream, CUdeviceptr, sys::cuuint32_t, c_uint);
        cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget, CUflushGPUDirectRDMAWritesScope);
    }
}

/// Why there are no functions to call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Absent {
    /// The library is not there.
    Library,
    /// It lacks these.
    Functions(Vec<&'static str>),
}

/// An error number of the driver's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code(pub c_int);

impl Code {
    pub const INVALID_VALUE: Code = Code(1);
    pub const OUT_OF_MEMORY: Code = Code(2);
    pub const STUB_LIBRARY: Code = Code(34);
    pub const NO_DEVICE: Code = Code(100);
    pub const INVALID_DEVICE: Code = Code(101);
    pub const INVALID_IMAGE: Code = Code(200);
    pub const NO_BINARY_FOR_GPU: Code = Code(209);
    pub const INVALID_PTX: Code = Code(218);
    pub const JIT_COMPILER_NOT_FOUND: Code = Code(221);
    pub const UNSUPPORTED_PTX_VERSION: Code = Code(222);
    pub const NOT_READY: Code = Code(600);
    pub const ALREADY_REGISTERED: Code = Code(712);
    pub const NOT_SUPPORTED: Code = Code(801);
    pub const SYSTEM_NOT_READY: Code = Code(802);
    pub const SYSTEM_DRIVER_MISMATCH: Code = Code(803);
    pub const COMPAT_NOT_SUPPORTED: Code = Code(804);
    pub const UNKNOWN: Code = Code(999);

    // Not the driver's: it has none below 0.
    /// Whoever waited was told to stop.
    pub const CANCELLED: Code = Code(-1);
    /// Kernels that wait for batches do not leave the device, so nothing can be done for which it has to be idle.
    pub const OCCUPIED: Code = Code(-2);
    /// The same of a batch that was given up.
    pub const LEFT_BEHIND: Code = Code(-3);

    /// Whether a kernel has failed, after which all fails that is done in the context (`cuda.h`, `CUresult`: "this leaves the
    /// process in an inconsistent state").
    pub fn is_of_context(self) -> bool {
        // From an illegal address to a failed launch, and errors of memory and NVLink.
        matches!(self.0, 700 | 702 | 710 | 714..=719 | 214 | 220)
    }
}

impl fmt::Display for Code {
    /// The driver's name for it and what it says of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Code::CANCELLED => return f.write_str("cancelled"),
            Code::OCCUPIED => return f.write_str("kernels that wait for batches do not leave the device"),
            Code::LEFT_BEHIND => return f.write_str("the device is still busy with a batch that was given up"),
            _ => {}
        }
        let asked = Driver::get().ok().and_then(|driver| Some((driver.name_of(*self)?, driver.says_of(*self)?)));
        match asked {
            Some((name, text)) => write!(f, "{name}: {text}"),
            None => write!(f, "error {}, for which the driver has no name", self.0),
        }
    }
}

impl Driver {
    /// The driver, loaded at the first call. It stays.
    ///
    /// # Errors
    /// [`Absent`] where there is none, or one that is too old.
    pub fn get() -> Result<&'static Driver, Absent> {
        static DRIVER: OnceLock<Result<Driver, Absent>> = OnceLock::new();
        DRIVER.get_or_init(Driver::load).as_ref().map_err(Absent::clone)
    }

    fn name_of(&self, code: Code) -> Option<String> {
        text(code, self.cuGetErrorName)
    }

    fn says_of(&self, code: Code) -> Option<String> {
        text(code, self.cuGetErrorString)
    }
}

/// Asks for a text about an error number.
fn text(code: Code, ask: unsafe extern "C" fn(CUresult, *mut *const c_char) -> c_int) -> Option<String> {
    // The same function, with the number for what it is: it need not be one of the enum's.
    type Ask = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;
    // SAFETY: cudarc's enum has the size and the representation of a C `int`.
    let ask: Ask = unsafe { std::mem::transmute(ask) };
    let mut text = ptr::null();
    // SAFETY: room for one pointer. The driver refuses numbers that it does not know.
    let known = unsafe { ask(code.0, &mut text) } == 0 && !text.is_null();
    // SAFETY: a text of the driver's own, which ends in a zero and stays.
    known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// The number that a function gave, as a result.
pub(crate) fn check(code: c_int) -> Result<(), Code> {
    if code == 0 { Ok(()) } else { Err(Code(code)) }
}

const _: () = assert!(size_of::<CUresult>() == size_of::<c_int>());

//! Functions of the OpenCL library, resolved at run time.
//!
//! `ocl-core` calls functions that `cl-sys` declares and that a system library usually defines.
//! Here they are defined by forwarders that look for that library at their first call, so that a
//! program with this crate links and starts without OpenCL (`build.rs`).
//!
//! The forwarders also hide from `ocl-core` what it panics at:
//! - a status code that it does not know becomes `CL_INVALID_OPERATION`, and
//!   [`take_unknown_status`] returns the original;
//! - a null object without an error becomes an error;
//! - failing to release an object is ignored: nobody could do anything about it.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;

use libloading::Library;
use num_traits::FromPrimitive;
use ocl_core::Status;
use ocl_core::ffi::{
    self, cl_bool, cl_command_queue, cl_command_queue_info, cl_command_queue_properties, cl_context, cl_context_info,
    cl_context_properties, cl_device_id, cl_device_info, cl_device_type, cl_event, cl_event_info, cl_int, cl_kernel,
    cl_kernel_info, cl_map_flags, cl_mem, cl_mem_flags, cl_platform_id, cl_platform_info, cl_profiling_info,
    cl_program, cl_program_build_info, cl_program_info, cl_uint,
};

/// Environment variable that names the OpenCL library to load instead of the system's.
pub(crate) const LIBRARY_ENV: &str = "PORTCULLIS_OPENCL_LIBRARY";

#[cfg(target_os = "macos")]
const LIBRARY_NAMES: &[&str] = &["/System/Library/Frameworks/OpenCL.framework/OpenCL"];
#[cfg(windows)]
const LIBRARY_NAMES: &[&str] = &["OpenCL.dll"];
#[cfg(not(any(target_os = "macos", windows)))]
const LIBRARY_NAMES: &[&str] = &["libOpenCL.so.1", "libOpenCL.so"];

/// The loaded OpenCL library, or the first error met while looking for it.
pub(crate) fn library() -> Result<&'static Library, &'static str> {
    static LOADED: OnceLock<Result<Library, String>> = OnceLock::new();
    let load = || {
        // An empty name counts as unset.
        let named = std::env::var_os(LIBRARY_ENV).filter(|name| !name.is_empty());
        let names = LIBRARY_NAMES.iter().map(Into::into);
        let names: Vec<std::ffi::OsString> = named.map_or_else(|| names.collect(), |name| vec![name]);
        let mut reason = None;
        for name in names {
            // SAFETY: loading a library runs its initialisers. This one is the system's or the
            // user's choice, and OpenCL libraries only initialise themselves.
            match unsafe { Library::new(&name) } {
                Ok(library) if is_opencl(&library) => return Ok(library),
                Ok(_) => {
                    let text =
                        format!("{}: it is no OpenCL library, and has no clGetPlatformIDs", name.to_string_lossy());
                    _ = reason.get_or_insert(text);
                }
                Err(error) => _ = reason.get_or_insert(error.to_string()),
            }
        }
        Err(reason.unwrap_or_default())
    };
    LOADED.get_or_init(load).as_ref().map_err(String::as_str)
}

fn is_opencl(library: &Library) -> bool {
    // SAFETY: the symbol is looked up and not used.
    unsafe { library.get::<*const c_void>(c"clGetPlatformIDs".to_bytes_with_nul()) }.is_ok()
}

/// Returns a function of the library; `None` if there is no library, or the function is missing.
///
/// # Safety
/// `F` is the function's type.
unsafe fn resolve<F: Copy>(name: &CStr) -> Option<F> {
    // SAFETY: by the caller's promise. The library is never unloaded.
    library().ok().and_then(|library| unsafe { library.get::<F>(name.to_bytes_with_nul()) }.ok().map(|found| *found))
}

thread_local! {
    static UNKNOWN_STATUS: Cell<Option<cl_int>> = const { Cell::new(None) };
}

/// Takes the last status code of this thread that `ocl-core` does not know.
pub(crate) fn take_unknown_status() -> Option<cl_int> {
    UNKNOWN_STATUS.take()
}

/// Returns the status code, or one that `ocl-core` knows.
pub(crate) fn replace_unknown_status(code: cl_int) -> cl_int {
    const SUCCESS: cl_int = Status::CL_SUCCESS as cl_int;
    if code == SUCCESS {
        return code;
    }
    let known = Status::from_i32(code).is_some();
    UNKNOWN_STATUS.set((!known).then_some(code));
    if known { code } else { Status::CL_INVALID_OPERATION as cl_int }
}

/// The status that a missing function returns.
const FUNCTION_MISSING: cl_int = Status::CL_PLATFORM_NOT_FOUND_KHR as cl_int;

/// Counts of this thread's calls of OpenCL, and faults in them, for tests.
#[cfg(test)]
pub(crate) mod calls {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;

    use super::cl_int;

    pub(crate) type Counts = BTreeMap<&'static str, usize>;

    thread_local! {
        static COUNTS: RefCell<Counts> = const { RefCell::new(Counts::new()) };
        static FAULT: Cell<Option<(&'static str, cl_int)>> = const { Cell::new(None) };
    }

    /// Has every call of a function fail with a status, or none.
    pub(crate) fn set_fault(fault: Option<(&'static str, cl_int)>) {
        FAULT.set(fault);
    }

    /// The status with which a function is to fail.
    pub(super) fn fault(function: &str) -> Option<cl_int> {
        FAULT.get().filter(|(name, _)| *name == function).map(|(_, status)| status)
    }

    pub(super) fn record(function: &'static str) {
        COUNTS.with_borrow_mut(|counts| *counts.entry(function).or_default() += 1);
    }

    /// Takes the counts since the last call of this function, by the function's name.
    pub(crate) fn take() -> Counts {
        COUNTS.take()
    }
}

type Notify<T> = Option<extern "C" fn(T, *mut c_void)>;
type ContextNotify = Option<extern "C" fn(*const c_char, *const c_void, usize, *mut c_void)>;
type EventNotify = Option<extern "C" fn(cl_event, cl_int, *mut c_void)>;

/// Defines forwarders. The compiler checks their types against those of `cl-sys`.
macro_rules! forward {
    ($($kind:ident $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $object:ty)?;)*) => {$(
        forward!(@define $kind $name($($argument: $type),*) $(-> $object)?);
    )*};
    // Functions that return a status.
    (@define status $name:ident($($argument:ident: $type:ty),*)) => {
        forward!(@extern $name($($argument: $type),*) -> cl_int, |function| {
            #[cfg(test)]
            if let Some(status) = calls::fault(stringify!($name)) {
                return replace_unknown_status(status);
            }
            // SAFETY: the caller answers for the arguments.
            function.map_or(FUNCTION_MISSING, |function| replace_unknown_status(unsafe { function($($argument),*) }))
        });
    };
    // Functions that release an object.
    (@define release $name:ident($object:ident: $type:ty)) => {
        forward!(@extern $name($object: $type) -> cl_int, |function| {
            if let Some(function) = function {
                // SAFETY: the caller gives the object up.
                unsafe { function($object) };
            }
            Status::CL_SUCCESS as cl_int
        });
    };
    // Functions that create an object and write a status to one more argument.
    (@define create $name:ident($($argument:ident: $type:ty),*) -> $object:ty) => {
        forward!(@extern $name($($argument: $type,)* status: *mut cl_int) -> $object, |function| {
            let mut code = FUNCTION_MISSING;
            #[cfg(test)]
            let function = match calls::fault(stringify!($name)) {
                Some(fault) => {
                    code = fault;
                    None
                }
                None => function,
            };
            // SAFETY: the caller answers for the arguments, except for the last, which is ours.
            let object = function.map_or(std::ptr::null_mut(), |f| unsafe { f($($argument,)* &mut code) });
            if object.is_null() && code == Status::CL_SUCCESS as cl_int {
                code = Status::CL_OUT_OF_RESOURCES as cl_int;
            }
            if !status.is_null() {
                // SAFETY: unless it is null, the caller has passed a valid pointer for the status.
                unsafe { *status = replace_unknown_status(code) };
            }
            object
        });
    };
    (@extern $name:ident($($argument:ident: $type:ty),*) -> $result:ty, |$function:ident| $body:block) => {
        /// Forwards to the OpenCL function of this name.
        ///
        /// # Safety
        /// As the OpenCL specification says.
        #[unsafe(no_mangle)]
        pub unsafe extern "system" fn $name($($argument: $type),*) -> $result {
            #[cfg(test)]
            calls::record(stringify!($name));
            type Function = unsafe extern "system" fn($($type),*) -> $result;
            static FOUND: OnceLock<Option<Function>> = OnceLock::new();
            let name = const { match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => unreachable!(),
            }};
            // SAFETY: the type is that of the function in OpenCL's headers, as declared by
            // `cl-sys`.
            let $function = *FOUND.get_or_init(|| unsafe { resolve::<Function>(name) });
            $body
        }
        const _: unsafe extern "system" fn($($type),*) -> $result = ffi::$name;
    };
}

forward! {
    status clGetPlatformIDs(entries: cl_uint, platforms: *mut cl_platform_id, count: *mut cl_uint);
    status clGetPlatformInfo(
        platform: cl_platform_id, what: cl_platform_info, size: usize, value: *mut c_void, size_ret: *mut usize,
    );
    status clGetDeviceIDs(
        platform: cl_platform_id, kind: cl_device_type, entries: cl_uint, devices: *mut cl_device_id,
        count: *mut cl_uint,
    );
    status clGetDeviceInfo(
        device: cl_device_id, what: cl_device_info, size: usize, value: *mut c_void, size_ret: *mut usize,
    );
    status clRetainDevice(device: cl_device_id);
    release clReleaseDevice(device: cl_device_id);

    create clCreateContext(
        properties: *const cl_context_properties, count: cl_uint, devices: *const cl_device_id,
        notify: ContextNotify, data: *mut c_void
    ) -> cl_context;
    status clRetainContext(context: cl_context);
    release clReleaseContext(context: cl_context);
    status clGetContextInfo(
        context: cl_context, what: cl_context_info, size: usize, value: *mut c_void, size_ret: *mut usize,
    );

    create clCreateCommandQueue(
        context: cl_context, device: cl_device_id, properties: cl_command_queue_properties
    ) -> cl_command_queue;
    status clRetainCommandQueue(queue: cl_command_queue);
    release clReleaseCommandQueue(queue: cl_command_queue);
    status clGetCommandQueueInfo(
        queue: cl_command_queue, what: cl_command_queue_info, size: usize, value: *mut c_void, size_ret: *mut usize,
    );
    status clFlush(queue: cl_command_queue);
    status clFinish(queue: cl_command_queue);

    create clCreateBuffer(context: cl_context, flags: cl_mem_flags, size: usize, host: *mut c_void) -> cl_mem;
    status clRetainMemObject(memory: cl_mem);
    release clReleaseMemObject(memory: cl_mem);

    create clCreateProgramWithSource(
        context: cl_context, count: cl_uint, strings: *const *const c_char, lengths: *const usize
    ) -> cl_program;
    create clCreateProgramWithBinary(
        context: cl_context, count: cl_uint, devices: *const cl_device_id, lengths: *const usize,
        binaries: *const *const u8, statuses: *mut cl_int
    ) -> cl_program;
    status clRetainProgram(program: cl_program);
    release clReleaseProgram(program: cl_program);
    status clBuildProgram(
        program: cl_program, count: cl_uint, devices: *const cl_device_id, options: *const c_char,
        notify: Notify<cl_program>, data: *mut c_void,
    );
    status clGetProgramInfo(
        program: cl_program, what: cl_program_info, size: usize, value: *mut c_void, size_ret: *mut usize,
    );
    status clGetProgramBuildInfo(
        program: cl_program, device: cl_device_id, what: cl_program_build_info, size: usize, value: *mut c_void,
        size_ret: *mut usize,
    );

    create clCreateKernel(program: cl_program, name: *const c_char) -> cl_kernel;
    status clRetainKernel(kernel: cl_kernel);
    release clReleaseKernel(kernel: cl_kernel);
    status clSetKernelArg(kernel: cl_kernel, index: cl_uint, size: usize, value: *const c_void);
    status clGetKernelInfo(
        kernel: cl_kernel, what: cl_kernel_info, size: usize, value: *mut c_void, size_ret: *mut usize,
    );

    status clRetainEvent(event: cl_event);
    release clReleaseEvent(event: cl_event);
    status clGetEventInfo(
        event: cl_event, what: cl_event_info, size: usize, value: *mut c_void, size_ret: *mut usize,
    );
    status clGetEventProfilingInfo(
        event: cl_event, what: cl_profiling_info, size: usize, value: *mut c_void, size_ret: *mut usize,
    );
    status clSetEventCallback(event: cl_event, at: cl_int, notify: EventNotify, data: *mut c_void);

    status clEnqueueWriteBuffer(
        queue: cl_command_queue, memory: cl_mem, blocking: cl_bool, offset: usize, size: usize, from: *const c_void,
        waits: cl_uint, wait_list: *const cl_event, event: *mut cl_event,
    );
    status clEnqueueReadBuffer(
        queue: cl_command_queue, memory: cl_mem, blocking: cl_bool, offset: usize, size: usize, to: *mut c_void,
        waits: cl_uint, wait_list: *const cl_event, event: *mut cl_event,
    );
    status clEnqueueFillBuffer(
        queue: cl_command_queue, memory: cl_mem, pattern: *const c_void, pattern_size: usize, offset: usize, size: usize,
        waits: cl_uint, wait_list: *const cl_event, event: *mut cl_event,
    );
    create clEnqueueMapBuffer(
        queue: cl_command_queue, memory: cl_mem, blocking: cl_bool, flags: cl_map_flags, offset: usize, size: usize,
        waits: cl_uint, wait_list: *const cl_event, event: *mut cl_event
    ) -> *mut c_void;
    status clEnqueueUnmapMemObject(
        queue: cl_command_queue, memory: cl_mem, mapped: *mut c_void, waits: cl_uint, wait_list: *const cl_event,
        event: *mut cl_event,
    );
    status clEnqueueNDRangeKernel(
        queue: cl_command_queue, kernel: cl_kernel, dimensions: cl_uint, offset: *const usize, global: *const usize,
        local: *const usize, waits: cl_uint, wait_list: *const cl_event, event: *mut cl_event,
    );
}

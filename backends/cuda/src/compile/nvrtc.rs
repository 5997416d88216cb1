//! NVRTC, CUDA's run-time compiler, loaded at run time.
//!
//! NVRTC is not part of the driver, and its file name differs with CUDA's major version. cudarc
//! knows the names up to 12, and only finds a library in the linker's path, so the search here is
//! our own. Function types and error codes are cudarc's.

#![expect(non_snake_case, reason = "the library's own names")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;

use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};

/// Environment variable that names the library to load instead of searching for one.
pub(crate) const LIBRARY_ENV: &str = "PORTCULLIS_NVRTC";

/// File names of the library, by CUDA's major version. The name without a version belongs to
/// development packages and may be of any version.
#[cfg(not(windows))]
const LIBRARY_NAMES: &[(i32, &str)] =
    &[(13, "libnvrtc.so.13"), (12, "libnvrtc.so.12"), (11, "libnvrtc.so.11.2"), (0, "libnvrtc.so")];
#[cfg(windows)]
const LIBRARY_NAMES: &[(i32, &str)] =
    &[(13, "nvrtc64_130_0.dll"), (12, "nvrtc64_120_0.dll"), (11, "nvrtc64_112_0.dll")];

/// Folders outside the linker's path that CUDA toolkits are installed in.
#[cfg(not(windows))]
const FOLDERS: &[&str] = &["/usr/local/cuda/lib64", "/opt/cuda/lib64"];
#[cfg(windows)]
const FOLDERS: &[&str] = &[];

macro_rules! functions {
    ($($name:ident($($type:ty),*);)*) => {
        struct Functions { $($name: unsafe extern "C" fn($($type),*) -> c_int,)* }

        $(const _: unsafe fn($($type),*) -> nvrtcResult = sys::$name;)*

        impl Functions {
            fn load(library: &'static libloading::Library) -> Result<Functions, &'static str> {
                Ok(Functions {
                    $(
                        // SAFETY: cudarc generates the type from NVRTC's header. Only the result
                        // differs: an enum there, which has the representation of a C `int`.
                        $name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                            .map_err(|_| stringify!($name))?,
                    )*
                })
            }
        }
    };
}

functions! {
    nvrtcVersion(*mut c_int, *mut c_int);
    nvrtcGetNumSupportedArchs(*mut c_int);
    nvrtcGetSupportedArchs(*mut c_int);
    nvrtcCreateProgram(
        *mut nvrtcProgram, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
    );
    nvrtcDestroyProgram(*mut nvrtcProgram);
    nvrtcCompileProgram(nvrtcProgram, c_int, *const *const c_char);
    nvrtcGetProgramLogSize(nvrtcProgram, *mut usize);
    nvrtcGetProgramLog(nvrtcProgram, *mut c_char);
    nvrtcGetCUBINSize(nvrtcProgram, *mut usize);
    nvrtcGetCUBIN(nvrtcProgram, *mut c_char);
    nvrtcGetPTXSize(nvrtcProgram, *mut usize);
    nvrtcGetPTX(nvrtcProgram, *mut c_char);
}

/// NVRTC, loaded.
pub(crate) struct Nvrtc {
    functions: Functions,
    /// Major and minor version.
    pub version: (i32, i32),
    /// Compute capabilities that NVRTC can target, 90 for 9.0, in ascending order.
    pub archs: Vec<i32>,
}

/// Kind of image to compile to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ImageKind {
    /// Machine code (ELF) for one architecture.
    Cubin,
    /// Portable assembly, which the driver compiles.
    Ptx,
}

impl Nvrtc {
    /// Returns NVRTC, loading it at the first call; it is never unloaded. If several versions are
    /// installed, the first call picks the one that suits a driver of major version `major`.
    ///
    /// # Errors
    /// If no usable version is installed, with the next step.
    pub fn get(major: i32) -> Result<&'static Nvrtc, String> {
        static NVRTC: OnceLock<Result<Nvrtc, String>> = OnceLock::new();
        NVRTC.get_or_init(|| Nvrtc::load(major)).as_ref().map_err(String::clone)
    }

    fn load(major: i32) -> Result<Nvrtc, String> {
        let (library, path) = open(major)?;
        // Never unloaded: the compiling thread of an abandoned session may still be in it.
        let library: &'static libloading::Library = Box::leak(Box::new(library));
        let functions = Functions::load(library)
            .map_err(|missing| format!("{} lacks {missing}: install NVRTC of CUDA 11.2 or newer", path.display()))?;
        let failed = |what: &str| format!("{} {what}: install it again", path.display());
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: the pointers are to numbers that outlive the calls.
        let known = unsafe {
            (functions.nvrtcVersion)(&mut major, &mut minor) == 0
                && (functions.nvrtcGetNumSupportedArchs)(&mut count) == 0
        };
        if !known {
            return Err(failed("does not report its version"));
        }
        let mut archs = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: the buffer has room for as many numbers as NVRTC has reported.
        if unsafe { (functions.nvrtcGetSupportedArchs)(archs.as_mut_ptr()) } != 0 {
            return Err(failed("does not report its architectures"));
        }
        archs.sort_unstable();
        Ok(Nvrtc { functions, version: (major, minor), archs })
    }

    /// Compiles a program to an image.
    ///
    /// # Errors
    /// The compiler's messages.
    pub fn compile(&self, name: &str, source: &str, options: &[String], output: ImageKind) -> Result<Vec<u8>, String> {
        let text = |text: &str| CString::new(text).map_err(|_| "the filter's source has a zero byte in it".to_owned());
        let (name, source) = (text(name)?, text(source)?);
        let options = options.iter().map(|option| text(option)).collect::<Result<Vec<_>, _>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = NvrtcProgram { functions: &self.functions, program: ptr::null_mut() };
        // SAFETY: the texts end in a zero, there are no headers, and the pointer outlives the call.
        let code = unsafe {
            (self.functions.nvrtcCreateProgram)(
                &mut program.program,
                source.as_ptr(),
                name.as_ptr(),
                0,
                ptr::null(),
                ptr::null(),
            )
        };
        if code != 0 {
            return Err(format!("NVRTC rejects the filter's source ({})", error_name(code)));
        }
        // SAFETY: the program was created above; the array has `options.len()` texts that end in a
        // zero.
        let code =
            unsafe { (self.functions.nvrtcCompileProgram)(program.program, options.len() as c_int, options.as_ptr()) };
        if code != 0 {
            let log = program.read_sized(self.functions.nvrtcGetProgramLogSize, self.functions.nvrtcGetProgramLog);
            let log = log.unwrap_or_default();
            let log = CStr::from_bytes_until_nul(&log).map_or_else(|_| "".into(), CStr::to_string_lossy);
            let log = if log.trim().is_empty() { "there are no further messages" } else { log.trim() };
            return Err(format!("NVRTC rejects the filter ({}):\n{log}", error_name(code)));
        }
        let made = match output {
            ImageKind::Cubin => program.read_sized(self.functions.nvrtcGetCUBINSize, self.functions.nvrtcGetCUBIN),
            ImageKind::Ptx => program.read_sized(self.functions.nvrtcGetPTXSize, self.functions.nvrtcGetPTX),
        };
        made.map_err(|code| format!("NVRTC does not return its output ({})", error_name(code)))
    }
}

/// An NVRTC program, destroyed on drop.
struct NvrtcProgram<'a> {
    functions: &'a Functions,
    program: nvrtcProgram,
}

type Size = unsafe extern "C" fn(nvrtcProgram, *mut usize) -> c_int;
type Content = unsafe extern "C" fn(nvrtcProgram, *mut c_char) -> c_int;

impl NvrtcProgram<'_> {
    /// Reads a result whose size one function reports and whose bytes another one copies.
    fn read_sized(&self, size: Size, content: Content) -> Result<Vec<u8>, c_int> {
        let mut bytes = 0;
        // SAFETY: the program is valid, and the pointer outlives the call.
        match unsafe { size(self.program, &mut bytes) } {
            0 if bytes > 0 => {}
            code => return Err(code),
        }
        let mut answer = vec![0_u8; bytes];
        // SAFETY: as above; the buffer has the size that was reported.
        match unsafe { content(self.program, answer.as_mut_ptr().cast()) } {
            0 => Ok(answer),
            code => Err(code),
        }
    }
}

impl Drop for NvrtcProgram<'_> {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: NVRTC has created the program, and nothing else uses it.
            unsafe { (self.functions.nvrtcDestroyProgram)(&mut self.program) };
        }
    }
}

/// Library names in the order to try them: a driver accepts the output of compilers of its own
/// major version and of older ones.
fn library_names(major: i32) -> Vec<&'static str> {
    let mut names = LIBRARY_NAMES.to_vec();
    names.sort_by_key(|&(version, _)| (version > major, (major - version).abs()));
    names.into_iter().map(|(_, name)| name).collect()
}

fn open(major: i32) -> Result<(libloading::Library, PathBuf), String> {
    let named = std::env::var_os(LIBRARY_ENV);
    let paths: Vec<PathBuf> = match &named {
        Some(path) => vec![PathBuf::from(path)],
        None => {
            let in_folder = |name| {
                std::iter::once(PathBuf::from(name))
                    .chain(FOLDERS.iter().map(move |folder| Path::new(folder).join(name)))
            };
            library_names(major).into_iter().flat_map(in_folder).collect()
        }
    };
    for path in paths {
        // SAFETY: loading NVRTC runs its initialisers, as in any program that uses it.
        if let Ok(library) = unsafe { libloading::Library::new(&path) } {
            return Ok((library, path));
        }
    }
    Err(match named {
        Some(path) => format!("{LIBRARY_ENV} names {}, which cannot be loaded", path.display()),
        None => format!(
            "no NVRTC (the CUDA compiler library) on this machine: install the CUDA toolkit (Debian's package nvidia-cuda-toolkit) or the \
             Python package nvidia-cuda-nvrtc-cu12, and set {LIBRARY_ENV} to the path of its libnvrtc.so.12"
        ),
    })
}

/// The name of an error code (`nvrtc.h`).
fn error_name(code: c_int) -> String {
    let name = match code {
        1 => "NVRTC_ERROR_OUT_OF_MEMORY",
        2 => "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
        3 => "NVRTC_ERROR_INVALID_INPUT",
        4 => "NVRTC_ERROR_INVALID_PROGRAM",
        5 => "NVRTC_ERROR_INVALID_OPTION",
        6 => "NVRTC_ERROR_COMPILATION",
        7 => "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
        11 => "NVRTC_ERROR_INTERNAL_ERROR",
        _ => return format!("error {code}"),
    };
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(not(windows))]
    fn the_driver_s_own_version_of_nvrtc_is_tried_first() {
        assert_eq!(library_names(13), ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"]);
        assert_eq!(library_names(12), ["libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so", "libnvrtc.so.13"]);
        assert_eq!(library_names(14)[0], "libnvrtc.so.13");
    }
}

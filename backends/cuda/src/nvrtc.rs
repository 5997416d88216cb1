//! NVRTC, CUDA's compiler as a library.
//!
//! It is not part of the driver, and every major version of it has a name of its own, of which cudarc
//! knows those up to 12 and wants one in the linker's path. So it is looked for here; types and error
//! numbers are cudarc's.

#![expect(non_snake_case, reason = "the library's own names")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;

use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};

/// Names the library, in place of the places where it is looked for.
pub(crate) const LIBRARY: &str = "PORTCULLIS_NVRTC";

/// Names under which systems have it, by CUDA's major version. The link without a number belongs to
/// development packages, and may be any.
#[cfg(not(windows))]
const NAMES: &[(i32, &str)] =
    &[(13, "libnvrtc.so.13"), (12, "libnvrtc.so.12"), (11, "libnvrtc.so.11.2"), (0, "libnvrtc.so")];
#[cfg(windows)]
const NAMES: &[(i32, &str)] = &[(13, "nvrtc64_130_0.dll"), (12, "nvrtc64_120_0.dll"), (11, "nvrtc64_112_0.dll")];

/// Folders outside the linker's path that toolkits are installed in.
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
                        // SAFETY: the type is that of cudarc's function of this name, made from NVRTC's own
                        // header, but for the result: an enum there, whose numbers are those of a C `int`.
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

/// The compiler, loaded.
pub(crate) struct Nvrtc {
    functions: Functions,
    /// Major and minor.
    pub version: (i32, i32),
    /// Compute capabilities that it makes code for, 90 for 9.0, ascending.
    pub archs: Vec<i32>,
}

/// What a program is translated to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// Machine code.
    Cubin,
    /// What the driver translates further.
    Ptx,
}

impl Nvrtc {
    /// The compiler, loaded at the first call. It stays. Where there are several it is the one that
    /// suits a driver of this major version.
    ///
    /// # Errors
    /// What is missing and what to do.
    pub fn get(major: i32) -> Result<&'static Nvrtc, String> {
        static NVRTC: OnceLock<Result<Nvrtc, String>> = OnceLock::new();
        NVRTC.get_or_init(|| Nvrtc::load(major)).as_ref().map_err(String::clone)
    }

    fn load(major: i32) -> Result<Nvrtc, String> {
        let (library, path) = open(major)?;
        // Never unloaded: what is compiled on a thread that was left behind may still be in it.
        let library: &'static libloading::Library = Box::leak(Box::new(library));
        let functions = Functions::load(library)
            .map_err(|missing| format!("{} lacks {missing}: install NVRTC of CUDA 11.2 or newer", path.display()))?;
        let failed = |what: &str| format!("{} {what}: install it again", path.display());
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: room for the numbers.
        let told = unsafe {
            (functions.nvrtcVersion)(&mut major, &mut minor) == 0
                && (functions.nvrtcGetNumSupportedArchs)(&mut count) == 0
        };
        if !told {
            return Err(failed("does not tell what it is"));
        }
        let mut archs = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: room for as many numbers as it has said.
        if unsafe { (functions.nvrtcGetSupportedArchs)(archs.as_mut_ptr()) } != 0 {
            return Err(failed("does not tell which GPUs it knows"));
        }
        archs.sort_unstable();
        Ok(Nvrtc { functions, version: (major, minor), archs })
    }

    /// Translates a program.
    ///
    /// # Errors
    /// The compiler's own words.
    pub fn compile(&self, name: &str, source: &str, options: &[String], output: Output) -> Result<Vec<u8>, String> {
        let text = |text: &str| CString::new(text).map_err(|_| "the filter's source has a zero byte in it".to_owned());
        let (name, source) = (text(name)?, text(source)?);
        let options = options.iter().map(|option| text(option)).collect::<Result<Vec<_>, _>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = Translation { functions: &self.functions, program: ptr::null_mut() };
        // SAFETY: texts that end in a zero, no headers, and room for a program.
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
            return Err(format!("NVRTC does not take the filter's source ({})", name_of(code)));
        }
        // SAFETY: the program was made above; as many options as are said, each of which ends in a zero.
        let code =
            unsafe { (self.functions.nvrtcCompileProgram)(program.program, options.len() as c_int, options.as_ptr()) };
        if code != 0 {
            let log = program.sized(self.functions.nvrtcGetProgramLogSize, self.functions.nvrtcGetProgramLog);
            let log = log.unwrap_or_default();
            let log = CStr::from_bytes_until_nul(&log).map_or_else(|_| "".into(), CStr::to_string_lossy);
            let log = if log.trim().is_empty() { "it says no more" } else { log.trim() };
            return Err(format!("NVRTC refuses the filter ({}):\n{log}", name_of(code)));
        }
        let made = match output {
            Output::Cubin => program.sized(self.functions.nvrtcGetCUBINSize, self.functions.nvrtcGetCUBIN),
            Output::Ptx => program.sized(self.functions.nvrtcGetPTXSize, self.functions.nvrtcGetPTX),
        };
        made.map_err(|code| format!("NVRTC does not give what it has made ({})", name_of(code)))
    }
}

/// A program of NVRTC's, which is released.
struct Translation<'a> {
    functions: &'a Functions,
    program: nvrtcProgram,
}

type Size = unsafe extern "C" fn(nvrtcProgram, *mut usize) -> c_int;
type Content = unsafe extern "C" fn(nvrtcProgram, *mut c_char) -> c_int;

impl Translation<'_> {
    /// An answer of a size that is asked for first.
    fn sized(&self, size: Size, content: Content) -> Result<Vec<u8>, c_int> {
        let mut bytes = 0;
        // SAFETY: a program, and room for a number.
        match unsafe { size(self.program, &mut bytes) } {
            0 if bytes > 0 => {}
            code => return Err(code),
        }
        let mut answer = vec![0_u8; bytes];
        // SAFETY: as above, and room for as many bytes as it has said.
        match unsafe { content(self.program, answer.as_mut_ptr().cast()) } {
            0 => Ok(answer),
            code => Err(code),
        }
    }
}

impl Drop for Translation<'_> {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: it was made by NVRTC, and nobody uses it any more.
            unsafe { (self.functions.nvrtcDestroyProgram)(&mut self.program) };
        }
    }
}

/// The order in which the names are tried: drivers take what compilers of their own major version and
/// of older ones make.
fn names(major: i32) -> Vec<&'static str> {
    let mut names = NAMES.to_vec();
    names.sort_by_key(|&(version, _)| (version > major, (major - version).abs()));
    names.into_iter().map(|(_, name)| name).collect()
}

fn open(major: i32) -> Result<(libloading::Library, PathBuf), String> {
    let named = std::env::var_os(LIBRARY);
    let paths: Vec<PathBuf> = match &named {
        Some(path) => vec![PathBuf::from(path)],
        None => {
            let in_folder = |name| {
                std::iter::once(PathBuf::from(name))
                    .chain(FOLDERS.iter().map(move |folder| Path::new(folder).join(name)))
            };
            names(major).into_iter().flat_map(in_folder).collect()
        }
    };
    for path in paths {
        // SAFETY: loading NVRTC runs its initialisation, which it is made for.
        if let Ok(library) = unsafe { libloading::Library::new(&path) } {
            return Ok((library, path));
        }
    }
    Err(match named {
        Some(path) => format!("{LIBRARY} names {}, which cannot be loaded", path.display()),
        None => format!(
            "there is no NVRTC, CUDA's compiler: install the CUDA toolkit (Debian's package nvidia-cuda-toolkit) or the \
             Python package nvidia-cuda-nvrtc-cu12, whose libnvrtc.so.12 goes into {LIBRARY} with its path"
        ),
    })
}

/// The name of an error number (CUDA's nvrtc.h).
fn name_of(code: c_int) -> String {
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
    fn a_compiler_of_the_driver_s_own_version_comes_first() {
        assert_eq!(names(13), ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"]);
        assert_eq!(names(12), ["libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so", "libnvrtc.so.13"]);
        assert_eq!(names(14)[0], "libnvrtc.so.13");
    }
}

//! The compile target of a device: which compiler makes its code, and for which architecture.

use std::fmt;
use std::path::PathBuf;

use super::nvrtc::Nvrtc;

/// Environment variable that names a folder of prebuilt cubins, which takes precedence over
/// compiling: see [`CubinSource`](crate::CubinSource).
pub const CUBIN_FOLDER_ENV: &str = "PORTCULLIS_CUBINS";

/// How the code for a device is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// NVRTC emits machine code for the device's own architecture.
    Cubin { version: (i32, i32), arch: i32 },
    /// NVRTC does not know the architecture of the device, and emits PTX for an older one, which
    /// the driver compiles.
    Ptx { version: (i32, i32), arch: i32, device: i32 },
    /// Compiling is impossible, for the given reason: only the cubins in the folder can run.
    Prebuilt { folder: PathBuf, arch: i32, reason: String },
}

impl Target {
    /// Chooses the target for a device's architecture and the CUDA version of its driver.
    ///
    /// # Errors
    /// The reason why there is none, and what to do.
    pub fn of_device(arch: i32, driver: (i32, i32)) -> Result<Target, String> {
        let compiled = Nvrtc::get(driver.0).and_then(|nvrtc| Target::choose(nvrtc.version, &nvrtc.archs, arch, driver));
        compiled.or_else(|reason| match std::env::var_os(CUBIN_FOLDER_ENV) {
            Some(folder) => Ok(Target::Prebuilt { folder: folder.into(), arch, reason }),
            None => Err(format!("{reason}; or name a folder of prebuilt filters in {CUBIN_FOLDER_ENV}")),
        })
    }

    fn choose(version: (i32, i32), archs: &[i32], arch: i32, driver: (i32, i32)) -> Result<Target, String> {
        let (major, minor) = version;
        if archs.contains(&arch) {
            return Ok(Target::Cubin { version, arch });
        }
        let Some(&below) = archs.iter().filter(|&&known| known <= arch).max() else {
            let first = archs.first().copied().unwrap_or_default();
            return Err(format!(
                "NVRTC {major}.{minor} makes no code for compute capability {}, and begins with {}: install an older one",
                capability(arch),
                capability(first)
            ));
        };
        // A driver accepts the PTX of compilers up to its own version.
        if version > driver {
            return Err(format!(
                "NVRTC {major}.{minor} does not know compute capability {}, and its PTX is too new for the driver (CUDA \
                 {}.{}): update the driver, or install an NVRTC of the driver's version",
                capability(arch),
                driver.0,
                driver.1
            ));
        }
        Ok(Target::Ptx { version, arch: below, device: arch })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Cubin { version, arch } => write!(f, "NVRTC {}.{}, code for sm_{arch}", version.0, version.1),
            Target::Ptx { version, arch, device } => write!(
                f,
                "NVRTC {}.{}, which does not know sm_{device}: the driver translates its PTX for compute_{arch}; a newer \
                 NVRTC makes better code",
                version.0, version.1
            ),
            Target::Prebuilt { folder, arch, reason } => {
                write!(f, "none ({reason}); filters that {} has for sm_{arch} can be run", folder.display())
            }
        }
    }
}

fn capability(arch: i32) -> String {
    format!("{}.{}", arch / 10, arch % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_code_is_preferred_and_ptx_needs_a_driver_that_accepts_it() {
        let archs = [75, 80, 90];
        let target = |version, arch, driver| Target::choose(version, &archs, arch, driver);
        assert_eq!(target((12, 4), 90, (12, 2)), Ok(Target::Cubin { version: (12, 4), arch: 90 }));
        let newer = target((12, 4), 100, (12, 8)).unwrap();
        assert_eq!(newer, Target::Ptx { version: (12, 4), arch: 90, device: 100 });
        assert!(newer.to_string().contains("does not know sm_100") && newer.to_string().contains("newer NVRTC"));
        // A GPU of 8.6 runs cubins for 8.0, but NVRTC was not asked for those: PTX is what it
        // emits.
        assert_eq!(target((12, 4), 86, (12, 4)), Ok(Target::Ptx { version: (12, 4), arch: 80, device: 86 }));
        let error = target((12, 9), 100, (12, 8)).unwrap_err();
        assert!(error.contains("PTX is too new for the driver (CUDA 12.8)") && error.contains("update"), "{error}");
        let error = target((13, 0), 61, (13, 0)).unwrap_err();
        assert!(error.contains("no code for compute capability 6.1") && error.contains("begins with 7.5"), "{error}");
    }
}

//! What was measured, kept from run to run: for each machine as it is, filter, and way of running it.

use std::collections::hash_map::DefaultHasher;
use std::fmt::{self, Write as _};
use std::hash::Hasher;

use portcullis_cache::{Cache, CacheError};
use portcullis_core::device::{DeviceInfo, LoadOptions};
use portcullis_core::program::Program;
use serde::{Deserialize, Serialize};

use super::costs::Costs;

/// Counts the changes to what is measured, and how: what was kept before is of no use then.
const GENERATION: u32 = 1;

/// The folder in the user's cache.
const KIND: &str = "auto";

/// What a calibration is for. Another machine, driver, filter or way of running it has another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key(String);

impl Key {
    /// For a filter on these candidates.
    pub fn new(program: &Program, candidates: &[&DeviceInfo], options: &LoadOptions) -> Key {
        let mut text = format!("calibration {GENERATION} portcullis {}\n", env!("CARGO_PKG_VERSION"));
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        let threads = options.threads.map_or(0, |threads| threads.get());
        let method = options.dispatch.map_or("any", |method| method.name());
        let work = options.synthetic_work.unwrap_or_default().as_nanos();
        // Writing to a string cannot fail.
        let (depth, transfer) = (options.depth, options.transfer);
        let _ = writeln!(text, "processors {processors} threads {threads} depth {depth} {method} {transfer} {work}");
        for info in candidates {
            let _ = writeln!(text, "device {} | {} | {}", info.id, info.name, info.driver);
        }
        let _ = writeln!(text, "filter {:016x}", fingerprint(program));
        Key(text)
    }
}

/// A number for what a filter does: its module, parameters resolved, its maps and its fuel.
fn fingerprint(program: &Program) -> u64 {
    /// Hashes what is written to it.
    struct Hashed(DefaultHasher);

    impl fmt::Write for Hashed {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }

    let mut hashed = Hashed(DefaultHasher::new());
    let _ = write!(hashed, "{:?} {:?} {}", program.module(), program.maps(), program.fuel());
    hashed.0.finish()
}

/// What is kept.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    /// The candidates' ids.
    devices: Vec<String>,
    costs: Costs,
}

/// Where calibrations are kept.
#[derive(Debug, Clone)]
pub struct CalibrationStore(Result<Cache, CacheError>);

impl CalibrationStore {
    /// The user's.
    pub fn open_user_cache() -> CalibrationStore {
        CalibrationStore(Cache::try_open(KIND))
    }

    /// Nowhere.
    pub fn disabled() -> CalibrationStore {
        CalibrationStore(Err(CacheError { path: Default::default(), reason: "calibrations are not kept" }))
    }

    /// This one.
    pub fn with_cache(cache: Cache) -> CalibrationStore {
        CalibrationStore(Ok(cache))
    }

    /// What was kept for a key, if something was.
    ///
    /// # Errors
    /// What is wrong with the file, in words.
    pub fn get(&self, key: &Key, ids: &[String]) -> Result<Option<Costs>, String> {
        let Ok(cache) = &self.0 else { return Ok(None) };
        let Some(bytes) = cache.try_get(key.0.as_bytes()).map_err(|unusable| unusable.to_string())? else {
            return Ok(None);
        };
        let kept: Kept = serde_json::from_slice(&bytes).map_err(|error| format!("it cannot be read: {error}"))?;
        let is_sound = |costs: &Costs| {
            let split = costs.split.as_ref();
            costs.devices.len() == ids.len()
                && costs.devices.iter().any(Option::is_some)
                && split.is_none_or(|split| split.first.max(split.second) < ids.len() && split.first != split.second)
        };
        match kept.devices == ids && is_sound(&kept.costs) {
            true => Ok(Some(kept.costs)),
            false => Err("it is of other devices".into()),
        }
    }

    /// Keeps costs for a key.
    ///
    /// # Errors
    /// Why they are not kept, in words.
    pub fn put(&self, key: &Key, ids: &[String], costs: &Costs) -> Result<(), String> {
        let cache = self.0.as_ref().map_err(CacheError::to_string)?;
        let kept = Kept { devices: ids.to_vec(), costs: costs.clone() };
        let bytes = serde_json::to_vec(&kept).map_err(|error| error.to_string())?;
        match cache.put(key.0.as_bytes(), &bytes) {
            true => Ok(()),
            false => Err("the folder of the cache cannot be written to".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use portcullis_core::device::noop::NoopDevice;
    use portcullis_core::device::{Device, Dispatch};
    use portcullis_core::diagnostics::Source;
    use portcullis_core::program::ProgramOptions;
    use portcullis_wgsl as wgsl;

    use super::super::curve::Curve;
    use super::*;

    fn program(text: &str, parameters: &[(&str, &str)]) -> Program {
        let parameters = parameters.iter().map(|&(name, value)| (name.into(), value.into())).collect();
        let options = ProgramOptions { parameters, ..ProgramOptions::default() };
        wgsl::compile(&Source::new("f.wgsl", text), &options).unwrap_or_else(|e| panic!("{}", e.render()))
    }

    fn costs() -> Costs {
        let curve = Curve::new(vec![(64, 100.5), (256, 1.0 / 3.0 + 300.0)]).unwrap();
        Costs { devices: vec![Some([curve.clone(), curve.clone(), curve]), None], split: None }
    }

    #[test]
    fn keys_tell_apart_what_costs_differently() {
        let text = "override limit: u32 = 3u;\nfn xdp_filter(pkt: u32) -> u32 { return select(1u, 2u, pkt_len(pkt) > limit); }";
        let noop = NoopDevice::new();
        let info = noop.info().clone();
        let options = LoadOptions::default();
        let key = |program: &Program, info: &[&DeviceInfo], options: &LoadOptions| Key::new(program, info, options);
        let base = key(&program(text, &[]), &[&info], &options);
        assert_eq!(base, key(&program(text, &[]), &[&info], &options));
        let other = DeviceInfo { driver: "another".into(), ..info.clone() };
        let depth = LoadOptions { depth: 7, ..LoadOptions::default() };
        let inline = LoadOptions { dispatch: Some(Dispatch::Inline), ..LoadOptions::default() };
        let keys = [
            base,
            key(&program(text, &[("limit", "4")]), &[&info], &options),
            key(&program(&text.replace("1u", "0u"), &[]), &[&info], &options),
            key(&program(text, &[]), &[&other], &options),
            key(&program(text, &[]), &[&info, &info], &options),
            key(&program(text, &[]), &[&info], &depth),
            key(&program(text, &[]), &[&info], &inline),
        ];
        for (at, one) in keys.iter().enumerate() {
            assert!(keys[at + 1..].iter().all(|other| other != one), "{one:?}");
        }
    }

    #[test]
    fn what_is_kept_comes_back_and_what_is_not_sound_is_said_to_be() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("auto");
        let store = CalibrationStore::with_cache(Cache::at(&at, 1 << 20).unwrap());
        let ids = ["cpu".to_owned(), "cuda:0".to_owned()];
        let key = Key("a".into());
        assert_eq!(store.get(&key, &ids), Ok(None));
        store.put(&key, &ids, &costs()).unwrap();
        assert_eq!(store.get(&key, &ids), Ok(Some(costs())));
        assert_eq!(store.get(&Key("b".into()), &ids), Ok(None));
        assert_eq!(store.get(&key, &ids[..1]), Err("it is of other devices".into()));

        // A file that was cut off, or changed.
        let file = std::fs::read_dir(&at).unwrap().next().unwrap().unwrap().path();
        let whole = std::fs::read(&file).unwrap();
        std::fs::write(&file, &whole[..whole.len() - 3]).unwrap();
        let said = store.get(&key, &ids).unwrap_err();
        assert!(said.contains("is damaged, or somebody else's") && said.contains(".bin"), "{said}");

        // What is whole, and means nothing.
        let cache = Cache::at(&at, 1 << 20).unwrap();
        for (text, what) in [
            ("", "cannot be read"),
            ("{}", "cannot be read"),
            (r#"{"devices":["cpu","cuda:0"],"costs":{"devices":[null,null],"split":null}}"#, "other devices"),
            (
                r#"{"devices":["cpu","cuda:0"],"costs":{"devices":[[[[64,-1.0]],[[64,1.0]],[[64,1.0]]],null],"split":null}}"#,
                "impossible costs",
            ),
            (
                r#"{"devices":["cpu","cuda:0"],"costs":{"devices":[[[[64,1.0]],[[64,1.0]],[[64,1.0]]],null],"split":{"first":0,"second":2,"curves":[null,null,null]}}}"#,
                "other devices",
            ),
        ] {
            assert!(cache.put(b"a", text.as_bytes()));
            let said = store.get(&key, &ids).unwrap_err();
            assert!(said.contains(what), "{text}: {said}");
        }

        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o777)).unwrap();
            let store = CalibrationStore(Cache::at(&at, 1 << 20));
            assert_eq!(store.get(&key, &ids), Ok(None));
            let said = store.put(&key, &ids, &costs()).unwrap_err();
            assert!(said.contains("others may enter it"), "{said}");
        }
        assert!(CalibrationStore::disabled().put(&key, &ids, &costs()).unwrap_err().contains("not kept"));
    }
}

//! Persistent calibrations: measured costs in the user's cache, keyed by machine, filter and way of
//! running it.

use std::collections::hash_map::DefaultHasher;
use std::fmt::{self, Write as _};
use std::hash::Hasher;

use portcullis_cache::{Cache, CacheError};
use portcullis_core::device::{DeviceInfo, LoadOptions};
use portcullis_core::program::Program;
use serde::{Deserialize, Serialize};

use super::costs::Costs;

/// Format generation, part of the key: increment it when other things are measured or in another
/// way.
const FORMAT_GENERATION: u32 = 1;

/// Subdirectory of the user's cache.
const CACHE_DIRECTORY: &str = "auto";

/// Identifies a calibration: describes the machine, drivers, filter and load options it is valid
/// for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CalibrationKey(String);

/// Why a stored calibration cannot be used, or one cannot be stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrationError {
    /// The cache is disabled or unusable, for this reason.
    #[error("{0}")]
    Cache(String),
    /// The stored costs are damaged.
    #[error("it cannot be read: {0}")]
    Unreadable(#[source] serde_json::Error),
    /// The stored costs belong to other devices.
    #[error("it was made for other devices")]
    OtherDevices,
    /// The costs have no representation in the file.
    #[error(transparent)]
    Unwritable(serde_json::Error),
    /// The file cannot be written.
    #[error("the cache directory is not writable")]
    ReadOnly,
}

impl CalibrationKey {
    /// Returns the key for a filter on these candidates.
    pub fn new(program: &Program, candidates: &[&DeviceInfo], options: &LoadOptions) -> CalibrationKey {
        let mut text = format!("calibration {FORMAT_GENERATION} portcullis {}\n", env!("CARGO_PKG_VERSION"));
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        let threads = options.threads.map_or(0, |threads| threads.get());
        let method = options.dispatch.map_or("any", |method| method.name());
        let work = options.measure.synthetic_work.unwrap_or_default().as_nanos();
        // Writing to a string cannot fail.
        let (depth, transfer) = (options.depth, options.transfer);
        let _ = writeln!(text, "processors {processors} threads {threads} depth {depth} {method} {transfer} {work}");
        for info in candidates {
            let _ = writeln!(text, "device {} | {} | {}", info.id, info.name, info.driver);
        }
        let _ = writeln!(text, "filter {:016x}", fingerprint(program));
        CalibrationKey(text)
    }
}

/// Hash of what a filter does: its module with resolved parameters, its maps and its fuel.
fn fingerprint(program: &Program) -> u64 {
    /// Hashes the text written to it.
    struct HashWriter(DefaultHasher);

    impl fmt::Write for HashWriter {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }

    let mut writer = HashWriter(DefaultHasher::new());
    let _ = write!(writer, "{:?} {:?} {}", program.module(), program.maps(), program.fuel());
    writer.0.finish()
}

/// A calibration as stored.
#[derive(Debug, Serialize, Deserialize)]
struct CalibrationRecord {
    /// Ids of the candidates.
    devices: Vec<String>,
    costs: Costs,
}

/// Store of calibrations.
#[derive(Debug, Clone)]
pub struct CalibrationStore(Result<Cache, CacheError>);

impl CalibrationStore {
    /// Opens the store in the user's cache.
    pub fn open_user_cache() -> CalibrationStore {
        CalibrationStore(Cache::try_open(CACHE_DIRECTORY))
    }

    /// A store that keeps nothing.
    pub fn disabled() -> CalibrationStore {
        CalibrationStore(Err(CacheError { path: Default::default(), reason: "caching is disabled".into() }))
    }

    /// A store in this cache.
    pub fn with_cache(cache: Cache) -> CalibrationStore {
        CalibrationStore(Ok(cache))
    }

    /// Returns the costs stored for a key, if any.
    ///
    /// # Errors
    /// If the stored file is invalid, with the reason.
    pub fn get(&self, key: &CalibrationKey, ids: &[String]) -> Result<Option<Costs>, CalibrationError> {
        let Ok(cache) = &self.0 else { return Ok(None) };
        let Some(bytes) =
            cache.try_get(key.0.as_bytes()).map_err(|unusable| CalibrationError::Cache(unusable.to_string()))?
        else {
            return Ok(None);
        };
        let record: CalibrationRecord = serde_json::from_slice(&bytes).map_err(CalibrationError::Unreadable)?;
        let is_valid = |costs: &Costs| {
            let split = costs.split.as_ref();
            costs.devices.len() == ids.len()
                && costs.devices.iter().any(Option::is_some)
                && split.is_none_or(|split| split.first.max(split.second) < ids.len() && split.first != split.second)
        };
        match record.devices == ids && is_valid(&record.costs) {
            true => Ok(Some(record.costs)),
            false => Err(CalibrationError::OtherDevices),
        }
    }

    /// Stores costs for a key.
    ///
    /// # Errors
    /// Why they are not stored.
    pub fn put(&self, key: &CalibrationKey, ids: &[String], costs: &Costs) -> Result<(), CalibrationError> {
        let cache = self.0.as_ref().map_err(|error| CalibrationError::Cache(error.to_string()))?;
        let record = CalibrationRecord { devices: ids.to_vec(), costs: costs.clone() };
        let bytes = serde_json::to_vec(&record).map_err(CalibrationError::Unwritable)?;
        match cache.put(key.0.as_bytes(), &bytes) {
            true => Ok(()),
            false => Err(CalibrationError::ReadOnly),
        }
    }
}

#[cfg(test)]
mod tests {
    use portcullis_core::device::noop::NoopDevice;
    use portcullis_core::device::{Device, Dispatch};

    use super::super::curve::CostCurve;
    use super::*;
    use crate::Filter;

    fn costs() -> Costs {
        let curve = CostCurve::new(vec![(64, 100.5), (256, 1.0 / 3.0 + 300.0)]).unwrap();
        Costs { devices: vec![Some([curve.clone(), curve.clone(), curve]), None], split: None }
    }

    #[test]
    fn keys_differ_for_whatever_affects_costs() {
        let text = "override limit: u32 = 3u;\nfn xdp_filter(pkt: u32) -> u32 { return select(1u, 2u, pkt_len(pkt) > limit); }";
        let noop = NoopDevice::new();
        let info = noop.info().clone();
        let options = LoadOptions::default();
        let filter = Filter::wgsl(text);
        let key = |filter: &Filter, info: &[&DeviceInfo], options: &LoadOptions| {
            CalibrationKey::new(&filter.compile().unwrap(), info, options)
        };
        let base = key(&filter, &[&info], &options);
        assert_eq!(base, key(&filter, &[&info], &options));
        let other = DeviceInfo { driver: "another".into(), ..info.clone() };
        let depth = LoadOptions::default().with_depth(7);
        let inline = LoadOptions::default().with_dispatch(Some(Dispatch::Inline));
        let keys = [
            base,
            key(&filter.clone().param("limit", 4).unwrap(), &[&info], &options),
            key(&Filter::wgsl(text.replace("1u", "0u")), &[&info], &options),
            key(&filter, &[&other], &options),
            key(&filter, &[&info, &info], &options),
            key(&filter, &[&info], &depth),
            key(&filter, &[&info], &inline),
        ];
        for (at, one) in keys.iter().enumerate() {
            assert!(keys[at + 1..].iter().all(|other| other != one), "{one:?}");
        }
    }

    #[test]
    fn stored_costs_are_returned_and_unusable_files_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("auto");
        let store = CalibrationStore::with_cache(Cache::at(&at, 1 << 20).unwrap());
        let ids = ["cpu".to_owned(), "cuda:0".to_owned()];
        let key = CalibrationKey("a".into());
        assert_eq!(store.get(&key, &ids).unwrap(), None);
        store.put(&key, &ids, &costs()).unwrap();
        assert_eq!(store.get(&key, &ids).unwrap(), Some(costs()));
        assert_eq!(store.get(&CalibrationKey("b".into()), &ids).unwrap(), None);
        let error = store.get(&key, &ids[..1]).unwrap_err();
        assert!(matches!(error, CalibrationError::OtherDevices), "{error}");
        assert_eq!(error.to_string(), "it was made for other devices");

        // A truncated file.
        let file = std::fs::read_dir(&at).unwrap().next().unwrap().unwrap().path();
        let whole = std::fs::read(&file).unwrap();
        std::fs::write(&file, &whole[..whole.len() - 3]).unwrap();
        let message = store.get(&key, &ids).unwrap_err().to_string();
        assert!(message.contains("is damaged, or its key differs") && message.contains(".bin"), "{message}");

        // Intact files with unusable content.
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
            let message = store.get(&key, &ids).unwrap_err().to_string();
            assert!(message.contains(what), "{text}: {message}");
        }

        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o777)).unwrap();
            let store = CalibrationStore(Cache::at(&at, 1 << 20));
            assert_eq!(store.get(&key, &ids).unwrap(), None);
            let message = store.put(&key, &ids, &costs()).unwrap_err().to_string();
            assert!(message.contains("others may enter it"), "{message}");
        }
        assert!(
            CalibrationStore::disabled()
                .put(&key, &ids, &costs())
                .unwrap_err()
                .to_string()
                .contains("caching is disabled")
        );
    }
}

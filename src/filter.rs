//! The high-level API: a filter from a file or text, loaded on a device, run over packets.
//!
//! ```
//! use portcullis::{Device, Filter, Verdict};
//!
//! let text = "
//!     //! map seen: counter entries=1
//!     override limit: u32 = 1500u;
//!     fn xdp_filter(pkt: u32) -> u32 {
//!         seen_add(0u, 1u);
//!         return select(XDP_PASS, XDP_DROP, pkt_len(pkt) > limit);
//!     }";
//! let filter = Filter::wgsl(text).param("limit", 100)?;
//! let mut run = filter.load(&Device::open("interp")?)?;
//!
//! let packets = [vec![0; 60], vec![0; 200]];
//! let mut passed = 0;
//! for (packet, verdict) in run.filter(&packets)? {
//!     if verdict == Verdict::Pass {
//!         passed += packet.len();
//!     }
//! }
//! assert_eq!(passed, 60);
//! assert_eq!(run.map::<u32, u64>("seen")?.get(&0)?, Some(2));
//! # Ok::<(), portcullis::Error>(())
//! ```

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use portcullis_core::device::{self, DeviceInfo, DeviceKind, LoadOptions, MapHandle, Session, Snapshot, UpdateError};
use portcullis_core::diagnostics::{MAX_SOURCE_BYTES, Source};
use portcullis_core::map::Words;
use portcullis_core::packet::{Batch, Verdict, VerdictCounts, Verdicts};
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_opencl_c::files::NoIncludes;

use crate::{Error, devices, expression, stock};

/// A device that can run filters: a GPU, the CPU, or the reference interpreter.
#[derive(Clone)]
pub struct Device(Arc<dyn device::Device>);

impl Device {
    /// Opens the strongest device found: a real GPU, else the CPU. Software drivers of GPU
    /// interfaces are never chosen.
    ///
    /// Unlike `--device auto` of the command line, nothing is measured: a GPU is chosen even where
    /// the CPU is faster.
    ///
    /// # Errors
    /// [`Error::Device`] if the build has no backend that works here.
    pub fn auto() -> Result<Device, Error> {
        Ok(Device(devices::open_auto()?))
    }

    /// Opens a device by id, for example `cpu`, `cuda:0`, `wgpu:0`, `opencl:1` or `interp`. Only
    /// that backend's drivers are loaded.
    ///
    /// # Errors
    /// [`Error::Device`] with what was found, or what to install.
    pub fn open(id: &str) -> Result<Device, Error> {
        Ok(Device(devices::open(id)?))
    }

    /// Id, name and capabilities.
    pub fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    /// The device's interface for engine builders, see [`device::Device`].
    pub fn as_dyn(&self) -> &Arc<dyn device::Device> {
        &self.0
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Device").field(&self.info().id).finish()
    }
}

/// Source of a filter.
#[derive(Debug, Clone)]
enum Input {
    Wgsl(Source),
    /// Text, and the folder that `#include` reads from, if there is one.
    OpenClC(Source, Option<PathBuf>),
    Bpf(Source),
    Expression(Source),
    #[cfg(feature = "xdp")]
    XdpObject {
        name: String,
        bytes: Vec<u8>,
        program: Option<String>,
    },
}

/// A packet filter in any of the languages, with its parameters, before it is compiled for a
/// device.
#[derive(Debug, Clone)]
pub struct Filter {
    input: Input,
    options: ProgramOptions,
}

impl Filter {
    fn new(input: Input) -> Filter {
        Filter { input, options: ProgramOptions::default() }
    }

    /// Reads a filter from a file; the name's ending selects the language: `.wgsl`, `.cl` (OpenCL
    /// C), `.bpf` (classic BPF as `tcpdump -ddd` prints it), or, with the feature `xdp`, `.o` (an
    /// XDP object compiled by clang).
    ///
    /// # Errors
    /// [`Error::Read`] or [`Error::UnknownLanguage`]. Errors in the text are found by
    /// [`load`](Filter::load) and [`compile`](Filter::compile).
    pub fn from_path(path: impl AsRef<Path>) -> Result<Filter, Error> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let read = || std::fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source });
        // Invalid UTF-8 becomes U+FFFD, which the front ends refuse at its place.
        let text = || read().map(|bytes| Source::new(name.as_str(), String::from_utf8_lossy(&bytes)));
        let ending = path.extension().map(|ending| ending.to_ascii_lowercase());
        Ok(Filter::new(match ending.as_ref().and_then(|ending| ending.to_str()) {
            Some("wgsl") => Input::Wgsl(text()?),
            Some("cl") => Input::OpenClC(text()?, Some(path.parent().unwrap_or(Path::new("")).to_owned())),
            Some("bpf") => Input::Bpf(text()?),
            #[cfg(feature = "xdp")]
            Some("o") => Input::XdpObject { bytes: read()?, name, program: None },
            _ => return Err(Error::UnknownLanguage { path: path.to_owned() }),
        }))
    }

    /// A filter in WGSL.
    pub fn wgsl(text: impl AsRef<str>) -> Filter {
        Filter::new(Input::Wgsl(Source::new("filter.wgsl", text.as_ref())))
    }

    /// A filter in OpenCL C. It cannot include files.
    pub fn opencl_c(text: impl AsRef<str>) -> Filter {
        Filter::new(Input::OpenClC(Source::new("filter.cl", text.as_ref()), None))
    }

    /// A tcpdump expression, such as `udp port 53`: packets that match pass, others are dropped.
    /// Compiling it needs the feature `pcap-expr`.
    pub fn expression(text: impl AsRef<str>) -> Filter {
        Filter::new(Input::Expression(Source::new("expression", text.as_ref())))
    }

    /// A program of classic BPF as `tcpdump -ddd` prints it.
    pub fn bpf(text: impl AsRef<str>) -> Filter {
        Filter::new(Input::Bpf(Source::new("filter.bpf", text.as_ref())))
    }

    /// An XDP object as clang writes it. Needs the feature `xdp`. `name` is used in diagnostics.
    #[cfg(feature = "xdp")]
    pub fn xdp_object(name: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Filter {
        Filter::new(Input::XdpObject { name: name.into(), bytes: bytes.into(), program: None })
    }

    /// One of the filters that ship with the library, see [`stock`], in WGSL.
    ///
    /// # Errors
    /// [`Error::UnknownStockFilter`].
    pub fn stock(name: &str) -> Result<Filter, Error> {
        let text = stock::wgsl(name).ok_or_else(|| Error::UnknownStockFilter(name.into()))?;
        Ok(Filter::new(Input::Wgsl(Source::new(format!("{name}.wgsl"), text))))
    }

    /// Chooses a program of an XDP object by its name or section; other filters have no programs
    /// and are left as they are. Without it, an object must have exactly one program.
    #[cfg(feature = "xdp")]
    pub fn with_program(mut self, name: impl Into<String>) -> Filter {
        if let Input::XdpObject { program, .. } = &mut self.input {
            *program = Some(name.into());
        }
        self
    }

    /// Sets a parameter: a WGSL `override`, an OpenCL C macro, or a global variable of an object.
    ///
    /// # Errors
    /// [`Error::Parameter`] if no filter can have a parameter like it. Whether this filter has it
    /// is found by [`load`](Filter::load) and [`compile`](Filter::compile).
    pub fn param(mut self, name: impl Into<String>, value: impl ToString) -> Result<Filter, Error> {
        let (name, value) = (name.into(), value.to_string());
        let reason = match (name.trim(), value.trim()) {
            ("", _) => "the name is empty",
            (_, "") => "the value is empty",
            _ => {
                self.options.parameters.push((name, value));
                return Ok(self);
            }
        };
        Err(Error::Parameter { name, value, reason })
    }

    /// Limits the loop iterations that the filter may spend on a packet
    /// ([`DEFAULT_FUEL`](portcullis_core::program::DEFAULT_FUEL) unless set); a packet that needs
    /// more is ABORTED.
    pub fn with_fuel(mut self, iterations: u32) -> Filter {
        self.options.fuel = iterations;
        self
    }

    /// Compiles and verifies the filter, for any number of devices.
    ///
    /// # Errors
    /// [`Error::Compile`] with every error of the text and its place.
    pub fn compile(&self) -> Result<Arc<Program>, Error> {
        let options = &self.options;
        let program = match &self.input {
            Input::Wgsl(source) => portcullis_wgsl::compile(source, options)?,
            Input::OpenClC(source, None) => portcullis_opencl_c::compile(source, options, &mut NoIncludes)?,
            Input::OpenClC(source, Some(folder)) => {
                portcullis_opencl_c::compile(source, options, &mut |path: &Path| read_include(folder, path))?
            }
            Input::Bpf(source) => portcullis_bpf::compile(source, options)?,
            Input::Expression(source) => expression::compile(source, options)?,
            #[cfg(feature = "xdp")]
            Input::XdpObject { name, bytes, program } => {
                portcullis_xdp::compile(name, bytes, program.as_deref(), options)?
            }
        };
        Ok(Arc::new(program))
    }

    /// Compiles the filter and loads it on a device.
    ///
    /// # Errors
    /// [`Error::Compile`], or [`Error::Device`] if the device cannot run the filter.
    pub fn load(&self, device: &Device) -> Result<Run, Error> {
        let program = self.compile()?;
        let session = device.0.load(&program, &LoadOptions::default())?;
        Ok(Run { program, session, device_kind: device.0.info().kind })
    }
}

/// Reads a file that an OpenCL C filter includes: a regular file within the filter's own folder.
fn read_include(folder: &Path, path: &Path) -> Result<Vec<u8>, String> {
    use std::io::Read;

    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let path = folder.join(path);
    let failed = |error: std::io::Error| error.to_string();
    // Opening a pipe could block forever.
    if !path.metadata().map_err(failed)?.is_file() {
        return Err("not a regular file".into());
    }
    if !path.canonicalize().map_err(failed)?.starts_with(folder.canonicalize().map_err(failed)?) {
        return Err("a symbolic link leads out of the filter's folder".into());
    }
    let mut bytes = Vec::new();
    // One byte beyond the limit is enough for the front end to refuse the file.
    let file = std::fs::File::open(&path).map_err(failed)?;
    file.take(MAX_SOURCE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// A filter loaded on a device, with its maps. Dropping it frees the device's memory.
pub struct Run {
    program: Arc<Program>,
    session: Box<dyn Session>,
    device_kind: DeviceKind,
}

impl Run {
    /// Runs the filter over packets, and returns each as the filter left it, with its verdict, in
    /// order. The packets are one batch: they run in any order and in parallel, except that packets
    /// of one flow keep their order if the filter defines `xdp_flow`.
    ///
    /// # Errors
    /// [`Error::Packets`] if the packets are too large for one batch, or [`Error::Device`].
    pub fn filter<P: AsRef<[u8]>>(&mut self, packets: &[P]) -> Result<Filtered, Error> {
        let done = self.session.run(Batch::from_packets(packets)?)?;
        Ok(Filtered { batch: Arc::new(done.batch), verdicts: done.verdicts })
    }

    /// Opens a map of the filter with Rust types for its keys and values, see [`MapHandle`].
    ///
    /// # Errors
    /// [`Error::OpenMap`] if the filter has no such map or its rows have another size.
    pub fn map<K: Words, V: Words>(&mut self, name: &str) -> Result<RunMap<'_, K, V>, Error> {
        Ok(RunMap { handle: MapHandle::open(&self.program, name)?, session: &mut *self.session })
    }

    /// The compiled filter: its source, parameters, maps and facts.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Kind of the device that the filter is loaded on.
    pub(crate) fn device_kind(&self) -> DeviceKind {
        self.device_kind
    }

    /// The session underneath, for batches in flight and words of maps.
    pub fn session(&mut self) -> &mut dyn Session {
        &mut *self.session
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("program", &self.program.source().name).finish_non_exhaustive()
    }
}

/// Packets after a filter ran, with their verdicts.
#[derive(Debug)]
pub struct Filtered {
    batch: Arc<Batch>,
    verdicts: Verdicts,
}

impl Filtered {
    /// Number of packets.
    pub fn len(&self) -> usize {
        self.verdicts.len()
    }

    /// Whether there are no packets.
    pub fn is_empty(&self) -> bool {
        self.verdicts.is_empty()
    }

    /// Number of packets by verdict.
    pub fn counts(&self) -> VerdictCounts {
        self.verdicts.counts()
    }

    /// Each packet's bytes and verdict, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], Verdict)> {
        self.batch.packets().zip(self.verdicts.iter())
    }
}

impl IntoIterator for Filtered {
    type Item = (Packet, Verdict);
    type IntoIter = FilteredIntoIter;

    fn into_iter(self) -> FilteredIntoIter {
        FilteredIntoIter { next: 0, filtered: self }
    }
}

/// Iterator over the packets of [`Filtered`].
#[derive(Debug)]
pub struct FilteredIntoIter {
    next: usize,
    filtered: Filtered,
}

impl Iterator for FilteredIntoIter {
    type Item = (Packet, Verdict);

    fn next(&mut self) -> Option<(Packet, Verdict)> {
        let index = self.next;
        if index == self.filtered.len() {
            return None;
        }
        self.next += 1;
        let packet = Packet { batch: Arc::clone(&self.filtered.batch), index };
        Some((packet, self.filtered.verdicts.get(index)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.filtered.len() - self.next;
        (left, Some(left))
    }
}

impl ExactSizeIterator for FilteredIntoIter {}

/// A packet's bytes, shared with the other packets of its batch. Dereferences to `[u8]`.
#[derive(Debug, Clone)]
pub struct Packet {
    batch: Arc<Batch>,
    index: usize,
}

impl Deref for Packet {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.batch.packet(self.index)
    }
}

impl AsRef<[u8]> for Packet {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// A map of a running filter. Reads see every packet filtered so far.
pub struct RunMap<'a, K, V> {
    handle: MapHandle<K, V>,
    session: &'a mut dyn Session,
}

impl<K: Words, V: Words> std::fmt::Debug for RunMap<'_, K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunMap").field("map", &self.handle.declaration().name).finish_non_exhaustive()
    }
}

impl<K: Words, V: Words> RunMap<'_, K, V> {
    /// Returns the value of a key.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn get(&mut self, key: &K) -> Result<Option<V>, Error> {
        Ok(self.handle.get(self.session, key)?)
    }

    /// Sets the value of a key, inserting it if it is absent.
    ///
    /// # Errors
    /// [`Error::UpdateMap`] if there is no room or no such entry.
    pub fn set(&mut self, key: &K, value: &V) -> Result<(), Error> {
        Ok(self.handle.set(self.session, key, value)?)
    }

    /// Removes a key; returns whether it was present.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn remove(&mut self, key: &K) -> Result<bool, Error> {
        Ok(self.handle.remove(self.session, key)?)
    }

    /// Copies the map's entries.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn snapshot(&mut self) -> Result<Snapshot<K, V>, Error> {
        Ok(self.handle.snapshot(self.session)?)
    }

    /// Changes several entries at once, or none if `change` fails.
    ///
    /// # Errors
    /// [`Error::UpdateMap`] with what `change` returned, or [`Error::Device`].
    pub fn update<T>(
        &mut self,
        change: impl FnOnce(&mut Snapshot<K, V>) -> Result<T, UpdateError>,
    ) -> Result<T, Error> {
        Ok(self.handle.update(self.session, change)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interp() -> Device {
        Device::open("interp").expect("the interpreter is in every build")
    }

    #[test]
    fn each_language_comes_through_the_high_level_api() {
        let wgsl = Filter::wgsl("fn xdp_filter(pkt: u32) -> u32 { return XDP_TX; }");
        let c = Filter::opencl_c("uint xdp_filter(__global uchar *pkt, uint len) { return XDP_TX; }");
        // `ret #262144`: every packet matches.
        let bpf = Filter::bpf("1\n6 0 0 262144\n");
        let expected = [Verdict::Tx, Verdict::Tx, Verdict::Pass];
        for (filter, expected) in [wgsl, c, bpf].into_iter().zip(expected) {
            let filtered = filter.load(&interp()).unwrap().filter(&[[7; 60]]).unwrap();
            assert_eq!((filtered.len(), filtered.is_empty()), (1, false));
            let all: Vec<_> = filtered.iter().map(|(packet, verdict)| (packet.to_vec(), verdict)).collect();
            assert_eq!(all, [(vec![7; 60], expected)]);
        }
    }

    #[test]
    fn packets_come_back_as_the_filter_left_them() {
        let mut run = Filter::stock("mac_swap").unwrap().load(&interp()).unwrap();
        let mut packet = [0_u8; 60];
        packet[..12].copy_from_slice(&[1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2]);
        let (swapped, verdict) = run.filter(&[packet]).unwrap().into_iter().next().unwrap();
        assert_eq!((&swapped[..12], verdict), (&[2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1][..], Verdict::Tx));
    }

    #[test]
    fn errors_say_what_is_wrong_and_where() {
        let message = |error: Error| error.to_string();
        assert!(message(Filter::from_path("none.wgsl").unwrap_err()).starts_with("cannot read none.wgsl: "));
        assert!(message(Filter::from_path("filter.txt").unwrap_err()).contains(".wgsl, .cl, .bpf or .o"));
        assert_eq!(message(Filter::stock("none").unwrap_err()), "no stock filter is called `none`");
        assert!(matches!(Filter::wgsl("").param("", 1), Err(Error::Parameter { .. })));
        let unknown = Filter::wgsl("fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }").param("port", 1).unwrap();
        assert!(matches!(unknown.load(&interp()), Err(Error::Compile(_))));
        assert!(matches!(Device::open("nothing"), Err(Error::Device(_))));
        let mut run = Filter::stock("minimal").unwrap().load(&interp()).unwrap();
        assert!(matches!(run.map::<u32, u32>("none"), Err(Error::OpenMap(_))));
    }

    #[test]
    fn files_are_read_by_their_endings_and_include_their_neighbours() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("limit.h"), "#define LIMIT 100\n").unwrap();
        let text = "#include \"limit.h\"\nuint xdp_filter(__global uchar *pkt, uint len) { return len > LIMIT ? XDP_DROP : XDP_PASS; }";
        let path = folder.path().join("short.CL");
        std::fs::write(&path, text).unwrap();
        let mut run = Filter::from_path(&path).unwrap().load(&interp()).unwrap();
        let verdicts: Vec<Verdict> =
            run.filter(&[vec![0; 60], vec![0; 101]]).unwrap().into_iter().map(|(_, verdict)| verdict).collect();
        assert_eq!(verdicts, [Verdict::Pass, Verdict::Drop]);
    }
}

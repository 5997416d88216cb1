//! DPDK's environment, which a process has once.

use std::ffi::{CStr, CString, c_char};
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::thread;

use portcullis_dpdk_sys as sys;

use super::error::{DpdkError, last};
use super::log::Log;

/// Mebibytes of memory without huge pages: nothing of it is taken before it is used.
const MEMORY_MIB: usize = 1024;

/// How DPDK is to begin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EalOptions {
    /// What it is given beside what it needs in any case (`-l 1-3`, `--no-huge`, `--vdev net_null0`), as its documentation says
    /// (doc/guides/linux_gsg/linux_eal_parameters.rst).
    pub arguments: Vec<String>,
    /// A network card that is needed, and needs huge pages.
    pub card: Option<String>,
    /// Whether it is to look for all network cards that there are.
    pub finds_cards: bool,
}

/// DPDK's environment.
#[derive(Debug)]
pub struct Eal {
    arguments: Vec<String>,
    log: Log,
    /// Whether memory is of huge pages.
    pub huge_pages: bool,
}

static EAL: Mutex<Option<&'static Eal>> = Mutex::new(None);

impl Eal {
    /// Begins DPDK, or gives the one that runs.
    ///
    /// # Errors
    /// [`DpdkError`] tells what to do.
    pub fn start(options: &EalOptions) -> Result<&'static Eal, DpdkError> {
        let mut eal = EAL.lock().unwrap_or_else(PoisonError::into_inner);
        let arguments = arguments(options)?;
        match *eal {
            Some(eal) if eal.arguments == arguments => Ok(eal),
            Some(eal) => Err(DpdkError::Twice { arguments: eal.arguments.clone() }),
            None => Ok(*eal.insert(Box::leak(Box::new(begin(arguments)?)))),
        }
    }

    /// What it was given.
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// What it has said since it was last asked.
    pub(super) fn said(&self) -> Vec<String> {
        self.log.lines()
    }
}

/// DPDK's release: `DPDK 22.11.11`.
pub fn version() -> String {
    // SAFETY: it gives a text of its own, with a zero byte at the end.
    unsafe { CStr::from_ptr(sys::rte_version()) }.to_string_lossy().into_owned()
}

fn begin(arguments: Vec<String>) -> Result<Eal, DpdkError> {
    let failed = |error, said| DpdkError::Eal { arguments: arguments.clone(), error, said };
    let log = Log::take().map_err(|error| failed(error, Vec::new()))?;
    let texts = arguments.iter().map(|argument| CString::new(argument.as_str()));
    let texts: Vec<CString> = texts.collect::<Result<_, _>>().map_err(|error| failed(error.into(), Vec::new()))?;
    // It keeps the thread that begins it on a processor: not this one, which has other things to do.
    let begun = thread::spawn(move || {
        let mut pointers: Vec<*mut c_char> = texts.into_iter().map(CString::into_raw).collect();
        pointers.push(std::ptr::null_mut());
        // SAFETY: there are as many texts as is said, which it may change the order of; they stay for as long as the process does,
        // since it keeps some.
        let result = unsafe { sys::rte_eal_init(pointers.len() as i32 - 1, pointers.as_mut_ptr()) };
        if result < 0 { Err(last()) } else { Ok(()) }
    });
    let begun = begun.join().unwrap_or_else(|_| Err(std::io::Error::other("the thread that began it died")));
    let said = log.lines();
    begun.map_err(|error| failed(error, said))?;
    // SAFETY: DPDK has begun.
    let huge_pages = unsafe { sys::rte_eal_has_hugepages() } != 0;
    Ok(Eal { arguments, log, huge_pages })
}

/// What DPDK is given: what a run needs and nobody has said otherwise.
fn arguments(options: &EalOptions) -> Result<Vec<String>, DpdkError> {
    let given = &options.arguments;
    let has = |names: &[&str]| {
        given.iter().any(|argument| {
            names.iter().any(|name| {
                argument == name
                    || argument.strip_prefix(name).is_some_and(|rest| rest.starts_with('=') || !name.starts_with("--"))
            })
        })
    };
    let mut arguments = vec!["portcullis".to_owned()];
    let mut add = |texts: &[&str]| arguments.extend(texts.iter().map(|text| (*text).to_owned()));
    // Threads are our own: one of DPDK's is enough.
    if !has(&["-l", "-c", "-s", "--lcores", "--main-lcore"]) {
        add(&["-l", &first_processor().to_string()]);
    }
    if !has(&["--telemetry", "--no-telemetry"]) {
        add(&["--no-telemetry"]);
    }
    if options.card.is_none() && !options.finds_cards && !has(&["-a", "--allow", "-b", "--block", "--no-pci"]) {
        add(&["--no-pci"]);
    }
    if !has(&["--no-huge"]) && free_huge_pages() == 0 {
        match &options.card {
            Some(port) => return Err(DpdkError::NoHugePages { port: port.clone() }),
            None => add(&["--no-huge"]),
        }
    }
    let no_huge = has(&["--no-huge"]) || arguments.iter().any(|argument| argument == "--no-huge");
    // No files and no sockets are left behind, and several can run beside each other.
    if !has(&["--in-memory", "--no-shconf", "--file-prefix", "--huge-dir", "--proc-type"]) {
        // The one means the other and more, which memory without huge pages is not compatible with.
        arguments.push(if no_huge { "--no-shconf" } else { "--in-memory" }.to_owned());
    }
    if no_huge && !has(&["-m", "--socket-mem"]) {
        arguments.extend(["-m".to_owned(), MEMORY_MIB.to_string()]);
    }
    arguments.extend(given.iter().cloned());
    Ok(arguments)
}

/// Huge pages that nobody has, of whatever size.
fn free_huge_pages() -> u64 {
    let sizes = fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
    let free = sizes.filter_map(|size| fs::read_to_string(size.path().join("free_hugepages")).ok());
    free.filter_map(|text| text.trim().parse::<u64>().ok()).sum()
}

/// The first processor that this thread may have.
fn first_processor() -> usize {
    // SAFETY: all bytes zero are a set of no processors, into which the call writes no further than its size.
    let allowed = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let got = libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) == 0;
        got.then_some(set)
    };
    // SAFETY: the number fits.
    let first =
        allowed.and_then(|set| (0..libc::CPU_SETSIZE as usize).find(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }));
    first.unwrap_or(0)
}

/// Has DPDK know the calling thread, which is faster at its pools then; until the thread ends.
pub(super) fn know_this_thread() {
    struct Known(bool);
    impl Drop for Known {
        fn drop(&mut self) {
            if self.0 {
                // SAFETY: this thread was registered.
                unsafe { sys::rte_thread_unregister() }
            }
        }
    }
    thread_local! {
        // SAFETY: DPDK has begun, as there are ports. Where it knows as many threads as it can, this one does without.
        static KNOWN: Known = Known(unsafe { sys::rte_thread_register() } == 0);
    }
    // A thread that is ending has no more to do with pools.
    let _ = KNOWN.try_with(|_| ());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(given: &[&str], card: Option<&str>) -> Result<Vec<String>, DpdkError> {
        let arguments = given.iter().map(|text| (*text).to_owned()).collect();
        super::arguments(&EalOptions { arguments, card: card.map(str::to_owned), finds_cards: false })
    }

    #[test]
    fn what_is_given_counts_and_the_rest_is_added() {
        let plain = of(&[], None).unwrap();
        assert_eq!(plain[0], "portcullis");
        let files = if free_huge_pages() == 0 { "--no-shconf" } else { "--in-memory" };
        for needed in ["-l", files, "--no-telemetry", "--no-pci"] {
            assert!(plain.iter().any(|argument| argument == needed), "{needed}: {plain:?}");
        }
        let given = of(&["-l0-1", "--file-prefix=x", "--no-huge", "-m", "64", "-a", "0000:01:00.0"], None).unwrap();
        assert_eq!(
            given,
            ["portcullis", "--no-telemetry", "-l0-1", "--file-prefix=x", "--no-huge", "-m", "64", "-a", "0000:01:00.0"]
        );
    }

    #[test]
    fn a_card_needs_huge_pages_that_are_free() {
        let with_card = of(&[], Some("0000:03:00.0"));
        match free_huge_pages() {
            0 => assert!(matches!(with_card, Err(DpdkError::NoHugePages { .. })), "{with_card:?}"),
            _ => assert!(!with_card.unwrap().iter().any(|argument| argument == "--no-huge")),
        }
        assert!(of(&["--no-huge"], Some("0000:03:00.0")).is_ok());
    }
}

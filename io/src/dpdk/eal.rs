//! The Environment Abstraction Layer (EAL), which a process initialises once.

use std::ffi::{CString, c_char};
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::thread;

use portcullis_dpdk_sys as sys;

use super::advice;
use super::error::{DpdkError, last};
use super::log::Log;

/// Default memory in MiB without huge pages; pages are only allocated on use.
const DEFAULT_MEMORY_MIB: usize = 1024;

/// Options for initialising the EAL.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct EalOptions {
    /// User-specified EAL arguments (`-l 1-3`, `--no-huge`, `--vdev net_null0`), see
    /// doc/guides/linux_gsg/linux_eal_parameters.rst. Defaults are added to them.
    pub arguments: Vec<String>,
    /// Minimum size of packet memory in bytes.
    pub memory: usize,
    /// A network card in use, which requires huge pages.
    pub card: Option<String>,
    /// Whether to probe all network cards.
    pub finds_cards: bool,
}

/// The initialised EAL.
#[derive(Debug)]
pub struct Eal {
    arguments: Vec<String>,
    log: Log,
    /// Size of packet memory in bytes, as requested at initialisation.
    memory: usize,
    /// Whether memory uses huge pages.
    pub huge_pages: bool,
}

static EAL: Mutex<Option<&'static Eal>> = Mutex::new(None);

impl Eal {
    /// Initialises the EAL, or returns the existing instance.
    ///
    /// # Errors
    /// [`DpdkError`] names the next step.
    pub(crate) fn start(options: &EalOptions) -> Result<&'static Eal, DpdkError> {
        let mut eal = EAL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(eal) = *eal {
            // Ignore the memory size, which cannot change; if it is too small, allocating packets
            // fails.
            let is_same = arguments(&EalOptions { memory: eal.memory, ..options.clone() })? == eal.arguments;
            return if is_same { Ok(eal) } else { Err(DpdkError::Twice { arguments: eal.arguments.clone() }) };
        }
        let begun = Eal { memory: options.memory, ..initialise(arguments(options)?)? };
        Ok(*eal.insert(Box::leak(Box::new(begun))))
    }

    /// The EAL arguments.
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// Takes the log messages since the last call.
    pub(super) fn log_lines(&self) -> Vec<String> {
        self.log.lines()
    }
}

fn initialise(arguments: Vec<String>) -> Result<Eal, DpdkError> {
    let failed = |error, log_lines: Vec<String>| {
        let hint = advice::for_eal(&log_lines);
        DpdkError::Eal { arguments: arguments.clone(), error, hint, log_lines }
    };
    let log = Log::take().map_err(|error| failed(error, Vec::new()))?;
    let texts = arguments.iter().map(|argument| CString::new(argument.as_str()));
    let texts: Vec<CString> = texts.collect::<Result<_, _>>().map_err(|error| failed(error.into(), Vec::new()))?;
    let redirect_stdio = log.redirect_stdio().map_err(|error| failed(error, Vec::new()))?;
    // rte_eal_init pins the calling thread to a CPU, so call it on a temporary thread.
    let begun = thread::spawn(move || {
        let mut pointers: Vec<*mut c_char> = texts.into_iter().map(CString::into_raw).collect();
        pointers.push(std::ptr::null_mut());
        // SAFETY: there are as many arguments as stated; DPDK may reorder them and keep some, so
        // they are leaked.
        let result = unsafe { sys::rte_eal_init(pointers.len() as i32 - 1, pointers.as_mut_ptr()) };
        if result < 0 { Err(last()) } else { Ok(()) }
    });
    let begun = begun.join().unwrap_or_else(|_| Err(std::io::Error::other("the initialising thread panicked")));
    drop(redirect_stdio);
    let log_lines = log.lines();
    begun.map_err(|error| failed(error, log_lines))?;
    // SAFETY: the EAL is initialised.
    let huge_pages = unsafe { sys::rte_eal_has_hugepages() } != 0;
    Ok(Eal { arguments, log, memory: 0, huge_pages })
}

/// Returns the EAL arguments: the user's, and defaults for what they leave open.
fn arguments(options: &EalOptions) -> Result<Vec<String>, DpdkError> {
    let given = &options.arguments;
    check_arguments(given)?;
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
    // Packets are processed on this program's own threads: a single lcore is enough.
    if !has(&["-l", "-c", "-s", "--lcores", "--main-lcore"]) {
        add(&["-l", &first_processor().to_string()]);
    }
    if !has(&["--telemetry", "--no-telemetry"]) {
        add(&["--no-telemetry"]);
    }
    if options.card.is_none() && !options.finds_cards && !has(&["-a", "--allow", "-b", "--block", "--no-pci"]) {
        add(&["--no-pci"]);
    }
    if options.card.is_some() && !options.finds_cards && !has(&["-a", "--allow", "-b", "--block", "--no-pci"]) {
        // Cards are probed later, one by one. This address allows none: no network card has it.
        add(&["-a", "0000:00:00.0"]);
    }
    if !has(&["--no-huge"]) && free_huge_pages() == 0 {
        match &options.card {
            Some(port) => return Err(DpdkError::NoHugePages { port: port.clone() }),
            None => add(&["--no-huge"]),
        }
    }
    let no_huge = has(&["--no-huge"]) || arguments.iter().any(|argument| argument == "--no-huge");
    // Leave no files and sockets behind, and allow several instances side by side.
    if !has(&["--in-memory", "--no-shconf", "--file-prefix", "--huge-dir", "--proc-type"]) {
        // --in-memory implies --no-shconf, but is incompatible with memory without huge pages.
        arguments.push(if no_huge { "--no-shconf" } else { "--in-memory" }.to_owned());
    }
    if no_huge && !has(&["-m", "--socket-mem"]) {
        // Room for rings and drivers' data besides packets.
        let needed = options.memory.div_ceil(1 << 20) + 64;
        arguments.extend(["-m".to_owned(), DEFAULT_MEMORY_MIB.max(needed).to_string()]);
    }
    arguments.extend(given.iter().cloned());
    Ok(arguments)
}

/// Refuses arguments that would exit the process silently, or make it a secondary process.
fn check_arguments(given: &[String]) -> Result<(), DpdkError> {
    let refused = |argument: &str, why: String| Err(DpdkError::Argument { argument: argument.to_owned(), why });
    for (index, argument) in given.iter().enumerate() {
        // As in `getopt_long`: long names may be abbreviated, and short options combined up to one
        // with a value.
        let letters = argument.strip_prefix('-').filter(|rest| !rest.starts_with('-')).unwrap_or_default();
        let asks_for_help = letters.chars().take_while(|letter| "hvS".contains(*letter)).any(|letter| letter == 'h')
            || argument.len() > 3 && "--help".starts_with(argument.as_str());
        if asks_for_help {
            let why = format!("it makes DPDK print its options and exit; they are listed at {}", advice::OPTIONS);
            return refused(argument, why);
        }
        let value = argument.strip_prefix("--proc-type").map(|rest| match rest.strip_prefix('=') {
            Some(value) => value,
            None => given.get(index + 1).map_or("", String::as_str),
        });
        if matches!(value, Some("secondary" | "auto")) {
            let why = "ports and memory belong to this process, so it is always a primary process of DPDK";
            return refused(argument, why.into());
        }
    }
    Ok(())
}

/// Number of free huge pages of all sizes.
fn free_huge_pages() -> u64 {
    let sizes = fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
    let free = sizes.filter_map(|size| fs::read_to_string(size.path().join("free_hugepages")).ok());
    free.filter_map(|text| text.trim().parse::<u64>().ok()).sum()
}

/// The first CPU in the thread's affinity mask.
fn first_processor() -> usize {
    // SAFETY: zeros are an empty CPU set, and the call writes at most its size.
    let allowed = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let got = libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) == 0;
        got.then_some(set)
    };
    // SAFETY: the number is below the set's size.
    let first =
        allowed.and_then(|set| (0..libc::CPU_SETSIZE as usize).find(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }));
    first.unwrap_or(0)
}

/// Registers the calling thread with DPDK until it exits, which gives it mempool caches.
pub(super) fn register_this_thread() {
    struct RegisteredThread(bool);
    impl Drop for RegisteredThread {
        fn drop(&mut self) {
            if self.0 {
                // SAFETY: this thread was registered.
                unsafe { sys::rte_thread_unregister() }
            }
        }
    }
    thread_local! {
        // SAFETY: the EAL is initialised, as there are ports. If all thread slots are taken, the
        // thread works unregistered.
        static REGISTERED: RegisteredThread = RegisteredThread(unsafe { sys::rte_thread_register() } == 0);
    }
    // An exiting thread no longer uses mempools.
    let _ = REGISTERED.try_with(|_| ());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(given: &[&str], card: Option<&str>) -> Result<Vec<String>, DpdkError> {
        let arguments = given.iter().map(|text| (*text).to_owned()).collect();
        super::arguments(&EalOptions { arguments, memory: 0, card: card.map(str::to_owned), finds_cards: false })
    }

    #[test]
    fn defaults_are_added_to_given_arguments() {
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
    fn memory_without_huge_pages_fits_the_packets() {
        let of = |memory, given: &[&str]| {
            let arguments = given.iter().map(|text| (*text).to_owned()).collect();
            let options = EalOptions { arguments, memory, ..EalOptions::default() };
            super::arguments(&options).unwrap().windows(2).find(|it| it[0] == "-m").unwrap()[1].clone()
        };
        assert_eq!(of(0, &["--no-huge"]), "1024");
        assert_eq!(of(3 << 30, &["--no-huge"]), (3 * 1024 + 64).to_string());
        assert_eq!(of(3 << 30, &["--no-huge", "-m", "16"]), "16");
    }

    #[test]
    fn arguments_that_exit_or_make_a_secondary_process_are_refused() {
        for given in
            [&["-h"][..], &["--help"], &["--hel"], &["-vh"], &["--proc-type=secondary"], &["--proc-type", "auto"]]
        {
            let error = of(given, None).unwrap_err();
            assert!(
                matches!(&error, DpdkError::Argument { argument, .. } if argument == given[0]),
                "{given:?}: {error}"
            );
        }
        for given in [&["-v"][..], &["--huge-dir", "/x"], &["-m", "16"], &["-dlibh.so"], &["--proc-type=primary"]] {
            assert!(of(given, None).is_ok(), "{given:?}");
        }
    }

    #[test]
    fn a_card_needs_free_huge_pages() {
        let with_card = of(&[], Some("0000:03:00.0"));
        match free_huge_pages() {
            0 => assert!(matches!(with_card, Err(DpdkError::NoHugePages { .. })), "{with_card:?}"),
            _ => assert!(!with_card.unwrap().iter().any(|argument| argument == "--no-huge")),
        }
        assert!(of(&["--no-huge"], Some("0000:03:00.0")).is_ok());
    }
}

//! DPDK's environment, which a process has once.

use std::ffi::{CStr, CString, c_char};
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::thread;

use portcullis_dpdk_sys as sys;

use super::advice;
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
    /// Bytes that packets need, at least.
    pub memory: usize,
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
    /// Bytes that packets were to need when it began.
    memory: usize,
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
        if let Some(eal) = *eal {
            // It has what memory it has. Where that is too little, there is none for packets.
            let is_same = arguments(&EalOptions { memory: eal.memory, ..options.clone() })? == eal.arguments;
            return if is_same { Ok(eal) } else { Err(DpdkError::Twice { arguments: eal.arguments.clone() }) };
        }
        let begun = Eal { memory: options.memory, ..begin(arguments(options)?)? };
        Ok(*eal.insert(Box::leak(Box::new(begun))))
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

/// The year and the month of a release, as it calls itself: `DPDK 22.11.11`.
pub(super) fn release(version: &str) -> Option<(u32, u32)> {
    let number = version.trim_start_matches(|c: char| !c.is_ascii_digit());
    let mut parts = number.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

fn begin(arguments: Vec<String>) -> Result<Eal, DpdkError> {
    let failed = |error, said: Vec<String>| {
        let hint = advice::begin(&said);
        DpdkError::Eal { arguments: arguments.clone(), error, hint, said }
    };
    let log = Log::take().map_err(|error| failed(error, Vec::new()))?;
    let texts = arguments.iter().map(|argument| CString::new(argument.as_str()));
    let texts: Vec<CString> = texts.collect::<Result<_, _>>().map_err(|error| failed(error.into(), Vec::new()))?;
    let quiet = log.quiet().map_err(|error| failed(error, Vec::new()))?;
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
    drop(quiet);
    let said = log.lines();
    begun.map_err(|error| failed(error, said))?;
    // SAFETY: DPDK has begun.
    let huge_pages = unsafe { sys::rte_eal_has_hugepages() } != 0;
    Ok(Eal { arguments, log, memory: 0, huge_pages })
}

/// What DPDK is given: what a run needs and nobody has said otherwise.
fn arguments(options: &EalOptions) -> Result<Vec<String>, DpdkError> {
    let given = &options.arguments;
    refuse(given)?;
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
    if options.card.is_some() && !options.finds_cards && !has(&["-a", "--allow", "-b", "--block", "--no-pci"]) {
        // Cards are taken one by one as they are named, and no others: nothing has this address that is a network card.
        add(&["-a", "0000:00:00.0"]);
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
        // Beside packets there is not much: rings, and what drivers have.
        let needed = options.memory.div_ceil(1 << 20) + 64;
        arguments.extend(["-m".to_owned(), MEMORY_MIB.max(needed).to_string()]);
    }
    arguments.extend(given.iter().cloned());
    Ok(arguments)
}

/// Refuses what would end this program without a word, or have it be another's part.
fn refuse(given: &[String]) -> Result<(), DpdkError> {
    let refused = |argument: &str, why: String| Err(DpdkError::Argument { argument: argument.to_owned(), why });
    for (index, argument) in given.iter().enumerate() {
        // As `getopt_long` reads them: names may be cut, and letters may follow each other up to the first that has a value.
        let letters = argument.strip_prefix('-').filter(|rest| !rest.starts_with('-')).unwrap_or_default();
        let asks_for_help = letters.chars().take_while(|letter| "hvS".contains(*letter)).any(|letter| letter == 'h')
            || argument.len() > 3 && "--help".starts_with(argument.as_str());
        if asks_for_help {
            let why = format!("it has DPDK print its options and end; they are listed at {}", advice::OPTIONS);
            return refused(argument, why);
        }
        let value = argument.strip_prefix("--proc-type").map(|rest| match rest.strip_prefix('=') {
            Some(value) => value,
            None => given.get(index + 1).map_or("", String::as_str),
        });
        if matches!(value, Some("secondary" | "auto")) {
            let why = "ports and memory are this program's own, so that it is a primary process of DPDK's in any case";
            return refused(argument, why.into());
        }
    }
    Ok(())
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
        super::arguments(&EalOptions { arguments, memory: 0, card: card.map(str::to_owned), finds_cards: false })
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
    fn memory_without_huge_pages_is_as_much_as_packets_need() {
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
    fn what_would_end_the_program_or_make_it_anothers_is_refused() {
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
    fn a_card_needs_huge_pages_that_are_free() {
        let with_card = of(&[], Some("0000:03:00.0"));
        match free_huge_pages() {
            0 => assert!(matches!(with_card, Err(DpdkError::NoHugePages { .. })), "{with_card:?}"),
            _ => assert!(!with_card.unwrap().iter().any(|argument| argument == "--no-huge")),
        }
        assert!(of(&["--no-huge"], Some("0000:03:00.0")).is_ok());
    }
}

//! GDRCopy: the processor's way into a GPU's memory, by a library and a module of the kernel's that NVIDIA gives beside
//! its driver (<https://github.com/NVIDIA/gdrcopy>, `gdrapi.h`, version 2). Both are looked for when they are needed.

use std::ffi::{c_int, c_uint, c_ulong, c_void};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use portcullis_core::device::DeviceError;

use crate::context::Handle;

#[cfg(not(windows))]
const NAMES: &[&str] = &["libgdrapi.so.2", "libgdrapi.so"];
#[cfg(windows)]
const NAMES: &[&str] = &[];

/// `gdr_t`'s.
#[derive(Debug, Clone, Copy)]
enum Library {}

/// `gdr_mh_t`: a structure of one number, which is passed as the number is.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct Pin(c_ulong);

/// `gdr_info_t`. Newer libraries write more, behind, than older ones.
#[repr(C)]
struct Info {
    /// Where what is mapped begins for the device: at a multiple of its pages of 64 KiB.
    start: u64,
    mapped_size: u64,
    _more: [u64; 14],
}

/// The library's functions.
struct Functions {
    open: unsafe extern "C" fn() -> *mut Library,
    close: unsafe extern "C" fn(*mut Library) -> c_int,
    pin: unsafe extern "C" fn(*mut Library, c_ulong, usize, u64, c_uint, *mut Pin) -> c_int,
    unpin: unsafe extern "C" fn(*mut Library, Pin) -> c_int,
    info: unsafe extern "C" fn(*mut Library, Pin, *mut Info) -> c_int,
    map: unsafe extern "C" fn(*mut Library, Pin, *mut *mut c_void, usize) -> c_int,
    unmap: unsafe extern "C" fn(*mut Library, Pin, *mut c_void, usize) -> c_int,
}

impl Functions {
    fn load() -> Result<Functions, String> {
        // SAFETY: loading it only runs what sets it up.
        let found = NAMES.iter().find_map(|name| unsafe { libloading::Library::new(name) }.ok());
        let library: &'static libloading::Library = Box::leak(Box::new(found.ok_or(
            "there is no GDRCopy on this machine (libgdrapi.so.2): install it (NVIDIA's packages libgdrapi and \
             gdrdrv-dkms)",
        )?));
        macro_rules! function {
            ($($name:literal)|+) => {{
                let mut found = None;
                // SAFETY: the types are those of gdrapi.h.
                $(found = found.or_else(|| unsafe { library.get($name.as_bytes()) }.map(|f| *f).ok());)+
                found.ok_or(concat!("libgdrapi lacks ", $($name, " "),+, "- GDRCopy 2.0 or newer is needed: update it"))?
            }};
        }
        Ok(Functions {
            open: function!("gdr_open"),
            close: function!("gdr_close"),
            pin: function!("gdr_pin_buffer"),
            unpin: function!("gdr_unpin_buffer"),
            // What gdrapi.h has since 2.4, and before.
            info: function!("gdr_get_info_v2" | "gdr_get_info"),
            map: function!("gdr_map"),
            unmap: function!("gdr_unmap"),
        })
    }

    fn get() -> Result<&'static Functions, String> {
        static FUNCTIONS: OnceLock<Result<Functions, String>> = OnceLock::new();
        FUNCTIONS.get_or_init(Functions::load).as_ref().map_err(String::clone)
    }
}

/// The module, opened: one in the process, for as long as something is mapped.
struct Opened {
    functions: &'static Functions,
    /// The library does not guard it.
    handle: Mutex<Handle<Library>>,
}

impl Opened {
    fn get() -> Result<Arc<Opened>, String> {
        static OPENED: Mutex<Weak<Opened>> = Mutex::new(Weak::new());
        let mut known = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = known.upgrade() {
            return Ok(opened);
        }
        let functions = Functions::get()?;
        // SAFETY: it takes nothing.
        let handle = unsafe { (functions.open)() };
        if handle.is_null() {
            return Err(
                "GDRCopy's module is not loaded, or this user may not open /dev/gdrdrv: `modprobe gdrdrv`, as \
                        root, loads it"
                    .into(),
            );
        }
        let opened = Arc::new(Opened { functions, handle: Mutex::new(Handle(handle)) });
        *known = Arc::downgrade(&opened);
        Ok(opened)
    }

    fn handle(&self) -> MutexGuard<'_, Handle<Library>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let handle = self.handle().get();
        // SAFETY: it was opened in `get`, and mappings, which keep this, are gone.
        unsafe { (self.functions.close)(handle) };
    }
}

/// Memory of a GPU as the processor sees it.
pub(super) struct Mapping {
    opened: Arc<Opened>,
    pin: Pin,
    /// What was mapped, from a page's start on.
    start: NonNull<c_void>,
    mapped: usize,
    /// The first byte that was asked for.
    first: NonNull<u8>,
}

// SAFETY: an address of memory that stays as long as this does; the library is used with its lock held.
unsafe impl Send for Mapping {}
// SAFETY: as above; shared, it gives an address only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` bytes of a GPU's memory from `address` on.
    ///
    /// # Errors
    /// [`DeviceError::Missing`] where there is no GDRCopy; [`DeviceError::Failed`] where it does not map the memory.
    ///
    /// # Safety
    /// They lie in one allocation of the GPU's, which is freed after this is dropped.
    pub unsafe fn new(device: &str, address: u64, bytes: usize) -> Result<Mapping, DeviceError> {
        let missing = |why| DeviceError::Missing(format!("the processor does not reach the memory of {device}: {why}"));
        let opened = Opened::get().map_err(missing)?;
        let failed = |what, code: c_int| DeviceError::Failed {
            device: device.into(),
            reason: format!(
                "its memory cannot be {what} for the processor ({}): {bytes} bytes have to fit into what is left of its \
                 PCI window (`nvidia-smi -q`, BAR1), and gdrdrv has to be of the driver's version",
                io::Error::from_raw_os_error(code)
            ),
        };
        let (functions, mut pin) = (opened.functions, Pin(0));
        let handle = opened.handle();
        // SAFETY: the handle is open, and there is room for a pin. Tokens are of no use for long and may be 0.
        let code = unsafe { (functions.pin)(handle.get(), address as c_ulong, bytes, 0, 0, &mut pin) };
        if code != 0 {
            return Err(failed("pinned", code));
        }
        let map = || -> Result<_, c_int> {
            let mut info = Info { start: 0, mapped_size: 0, _more: [0; 14] };
            // SAFETY: the pin is new; there is room for what any library writes.
            let code = unsafe { (functions.info)(handle.get(), pin, &mut info) };
            let before = address.checked_sub(info.start).and_then(|before| usize::try_from(before).ok());
            let Some(before) = before.filter(|_| code == 0) else { return Err(code) };
            let (mut start, mapped) = (ptr::null_mut(), before + bytes);
            // SAFETY: the pin is new, and has as many bytes from its first page on; there is room for an address.
            let code = unsafe { (functions.map)(handle.get(), pin, &mut start, mapped) };
            let start = NonNull::new(start).filter(|_| code == 0).ok_or(code)?;
            Ok((start, mapped, before))
        };
        match map() {
            Ok((start, mapped, before)) => {
                // SAFETY: that far into what was mapped.
                let first = unsafe { start.cast::<u8>().add(before) };
                drop(handle);
                Ok(Mapping { opened, pin, start, mapped, first })
            }
            Err(code) => {
                // SAFETY: the pin is new, and nothing is mapped.
                unsafe { (functions.unpin)(handle.get(), pin) };
                Err(failed("mapped", code))
            }
        }
    }

    pub fn first(&self) -> NonNull<u8> {
        self.first
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let handle = self.opened.handle();
        // SAFETY: mapped and pinned in `new`; nobody has the address any more.
        unsafe {
            (self.opened.functions.unmap)(handle.get(), self.pin, self.start.as_ptr(), self.mapped);
            (self.opened.functions.unpin)(handle.get(), self.pin);
        }
    }
}

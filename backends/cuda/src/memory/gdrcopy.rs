//! GDRCopy: CPU mappings of GPU memory, through a library and a kernel module that NVIDIA ships
//! beside its driver (<https://github.com/NVIDIA/gdrcopy>, `gdrapi.h`, version 2). Both are looked
//! for when first needed.

use std::ffi::{c_int, c_uint, c_ulong, c_void};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use portcullis_core::device::DeviceError;

use crate::driver::context::Handle;

#[cfg(not(windows))]
const LIBRARY_NAMES: &[&str] = &["libgdrapi.so.2", "libgdrapi.so"];
#[cfg(windows)]
const LIBRARY_NAMES: &[&str] = &[];

/// Opaque target of a `gdr_t`.
#[derive(Debug, Clone, Copy)]
enum GdrContext {}

/// `gdr_mh_t`: a struct of one integer, which is passed like the integer.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct MappingHandle(c_ulong);

/// `gdr_info_t`. Newer versions of the library write more fields at the end.
#[repr(C)]
struct MappingInfo {
    /// Device address at which the mapping starts: a multiple of the GPU page size, 64 KiB.
    start: u64,
    mapped_size: u64,
    _more: [u64; 14],
}

/// Functions of the library.
struct Functions {
    open: unsafe extern "C" fn() -> *mut GdrContext,
    close: unsafe extern "C" fn(*mut GdrContext) -> c_int,
    pin: unsafe extern "C" fn(*mut GdrContext, c_ulong, usize, u64, c_uint, *mut MappingHandle) -> c_int,
    unpin: unsafe extern "C" fn(*mut GdrContext, MappingHandle) -> c_int,
    info: unsafe extern "C" fn(*mut GdrContext, MappingHandle, *mut MappingInfo) -> c_int,
    map: unsafe extern "C" fn(*mut GdrContext, MappingHandle, *mut *mut c_void, usize) -> c_int,
    unmap: unsafe extern "C" fn(*mut GdrContext, MappingHandle, *mut c_void, usize) -> c_int,
}

impl Functions {
    fn load() -> Result<Functions, String> {
        // SAFETY: loading the library only runs its initialisers.
        let found = LIBRARY_NAMES.iter().find_map(|name| unsafe { libloading::Library::new(name) }.ok());
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
            // The first since gdrapi.h 2.4, the second before.
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

/// The open kernel module; one in the process, while anything is mapped.
struct GdrDriver {
    functions: &'static Functions,
    /// Locked around every call: the library is not thread-safe.
    handle: Mutex<Handle<GdrContext>>,
}

impl GdrDriver {
    fn get() -> Result<Arc<GdrDriver>, String> {
        static OPENED: Mutex<Weak<GdrDriver>> = Mutex::new(Weak::new());
        let mut known = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = known.upgrade() {
            return Ok(opened);
        }
        let functions = Functions::get()?;
        // SAFETY: the function has no arguments.
        let handle = unsafe { (functions.open)() };
        if handle.is_null() {
            return Err(
                "GDRCopy's module is not loaded, or this user may not open /dev/gdrdrv: `modprobe gdrdrv`, as \
                        root, loads it"
                    .into(),
            );
        }
        let opened = Arc::new(GdrDriver { functions, handle: Mutex::new(Handle(handle)) });
        *known = Arc::downgrade(&opened);
        Ok(opened)
    }

    fn handle(&self) -> MutexGuard<'_, Handle<GdrContext>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for GdrDriver {
    fn drop(&mut self) {
        let handle = self.handle().get();
        // SAFETY: the handle was opened in `get`, and no mapping is left, since mappings keep this
        // value.
        unsafe { (self.functions.close)(handle) };
    }
}

/// A CPU mapping of GPU memory.
pub(super) struct Mapping {
    opened: Arc<GdrDriver>,
    pin: MappingHandle,
    /// Start and size of what was mapped, which is whole GPU pages at the start.
    start: NonNull<c_void>,
    mapped: usize,
    /// The first byte that was asked for.
    first: NonNull<u8>,
}

// SAFETY: an address of memory that stays mapped as long as this value exists; the library is
// called with its lock held.
unsafe impl Send for Mapping {}
// SAFETY: as above; shared references give an address only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` bytes of a GPU's memory from device address `address` on.
    ///
    /// # Errors
    /// [`DeviceError::Missing`] if GDRCopy is not installed; [`DeviceError::Failed`] if it cannot
    /// map the memory.
    ///
    /// # Safety
    /// The bytes lie in one allocation of the GPU, which is freed only after this value is dropped.
    pub unsafe fn new(device: &str, address: u64, bytes: usize) -> Result<Mapping, DeviceError> {
        let missing = |why| DeviceError::Missing(format!("the processor does not reach the memory of {device}: {why}"));
        let opened = GdrDriver::get().map_err(missing)?;
        let failed = |what, code: c_int| DeviceError::Failed {
            device: device.into(),
            reason: format!(
                "its memory cannot be {what} for the processor ({}): {bytes} bytes have to fit into what is left of its \
                 PCI window (`nvidia-smi -q`, BAR1), and gdrdrv has to be of the driver's version",
                io::Error::from_raw_os_error(code)
            ),
        };
        let (functions, mut pin) = (opened.functions, MappingHandle(0));
        let handle = opened.handle();
        // SAFETY: the handle is open, and the pointer outlives the call. The deprecated tokens may
        // be 0.
        let code = unsafe { (functions.pin)(handle.get(), address as c_ulong, bytes, 0, 0, &mut pin) };
        if code != 0 {
            return Err(failed("pinned", code));
        }
        let map = || -> Result<_, c_int> {
            let mut info = MappingInfo { start: 0, mapped_size: 0, _more: [0; 14] };
            // SAFETY: the memory is pinned; the struct has room for what any version of the library
            // writes.
            let code = unsafe { (functions.info)(handle.get(), pin, &mut info) };
            let before = address.checked_sub(info.start).and_then(|before| usize::try_from(before).ok());
            let Some(before) = before.filter(|_| code == 0) else { return Err(code) };
            let (mut start, mapped) = (ptr::null_mut(), before + bytes);
            // SAFETY: the memory is pinned, with that many bytes from its first page on; the
            // pointer outlives the call.
            let code = unsafe { (functions.map)(handle.get(), pin, &mut start, mapped) };
            let start = NonNull::new(start).filter(|_| code == 0).ok_or(code)?;
            Ok((start, mapped, before))
        };
        match map() {
            Ok((start, mapped, before)) => {
                // SAFETY: within what was mapped.
                let first = unsafe { start.cast::<u8>().add(before) };
                drop(handle);
                Ok(Mapping { opened, pin, start, mapped, first })
            }
            Err(code) => {
                // SAFETY: the memory is pinned and not mapped.
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

//! What rdma-core's libraries export, looked up when it is first needed: a program that has no use for RDMA runs without them.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::sync::OnceLock;

use libloading::Library;
use rdma_sys::{ibv_context, ibv_device, ibv_device_attr, ibv_gid_entry, ibv_port_attr};

/// Why there are no verbs on this machine. It says what to install.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// The system's loader does not find `library`, or cannot load it.
    #[error(
        "RDMA needs {library}, which cannot be loaded ({why}): install rdma-core's packages (on Debian: {package})"
    )]
    Library { library: &'static str, package: &'static str, why: String },
    /// `library` is there, and older than what we use of it.
    #[error("RDMA needs {symbol} of {library}, which this machine's does not have: install rdma-core 33 or newer")]
    Symbol { library: &'static str, symbol: &'static str },
}

/// What we use of `libibverbs`. What its header has inline goes through a context's own table, and is not here.
pub(super) struct Verbs {
    pub(super) get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device,
    pub(super) free_device_list: unsafe extern "C" fn(*mut *mut ibv_device),
    pub(super) get_device_name: unsafe extern "C" fn(*mut ibv_device) -> *const c_char,
    pub(super) open_device: unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context,
    pub(super) close_device: unsafe extern "C" fn(*mut ibv_context) -> c_int,
    pub(super) query_device: unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int,
    pub(super) query_port: unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int,
    /// Context, room for entries, how many fit, flags (0), bytes of an entry; gives how many were written, or minus errno.
    pub(super) query_gid_table: unsafe extern "C" fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize,
}

const VERBS: &str = "libibverbs.so.1";

/// The verbs, loaded at the first call that finds them. A failure is not kept: the libraries may be installed meanwhile.
///
/// # Errors
/// [`Missing`] if the library or one of its symbols is not there.
pub(super) fn verbs() -> Result<&'static Verbs, Missing> {
    static LOADED: OnceLock<Verbs> = OnceLock::new();
    if let Some(verbs) = LOADED.get() {
        return Ok(verbs);
    }
    let found = load(VERBS, "libibverbs1 ibverbs-providers")?;
    // Two callers at once look the same symbols up, and one table is kept.
    Ok(LOADED.get_or_init(|| found))
}

fn load(library: &'static str, package: &'static str) -> Result<Verbs, Missing> {
    // SAFETY: what runs when rdma-core's library is loaded registers its plug-ins and no more; it may be loaded from any thread.
    let opened = unsafe { Library::new(library) }.map_err(|error| Missing::Library {
        library,
        package,
        why: error.to_string(),
    })?;
    // Never closed: its functions are called for as long as the program runs, and it keeps threads and tables of its own.
    let opened: &'static Library = Box::leak(Box::new(opened));
    macro_rules! symbol {
        ($name:literal) => {
            // SAFETY: the field's type is the symbol's in rdma-core's header, the same in every version of `.so.1`.
            *unsafe { opened.get($name) }.map_err(|_| Missing::Symbol { library, symbol: $name })?
        };
    }
    Ok(Verbs {
        get_device_list: symbol!("ibv_get_device_list"),
        free_device_list: symbol!("ibv_free_device_list"),
        get_device_name: symbol!("ibv_get_device_name"),
        open_device: symbol!("ibv_open_device"),
        close_device: symbol!("ibv_close_device"),
        query_device: symbol!("ibv_query_device"),
        query_port: symbol!("ibv_query_port"),
        query_gid_table: symbol!("_ibv_query_gid_table"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_its_package() {
        let missing = load("libforebay-not-there.so.1", "that-package").err().expect("there is no such library");
        let text = missing.to_string();
        assert!(text.contains("libforebay-not-there.so.1") && text.contains("that-package"), "{text}");
    }

    #[test]
    fn a_library_without_a_symbol_is_named_with_the_symbol() {
        let missing = load("libc.so.6", "libc6").err().expect("libc has no verbs");
        assert_eq!(missing, Missing::Symbol { library: "libc.so.6", symbol: "ibv_get_device_list" });
    }
}

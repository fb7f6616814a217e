//! What rdma-core's libraries export, looked up when it is first needed: a program that has no use for RDMA runs without them.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libc::sockaddr;
use libloading::Library;
use rdma_sys::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_gid_entry, ibv_mr, ibv_pd, ibv_port_attr,
    ibv_qp, ibv_qp_attr, ibv_qp_init_attr, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel,
    rdma_port_space,
};

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

/// Looks up in `$library` (of package `$package`) what `$fields` have as their symbols.
macro_rules! table {
    ($table:ident from $library:literal of $package:literal { $($field:ident: $symbol:literal as $type:ty,)* }) => {
        pub(super) struct $table {
            $(pub(super) $field: $type,)*
        }

        impl $table {
            /// Loaded at the first call that finds it. A failure is not kept: the library may be installed meanwhile.
            ///
            /// # Errors
            /// [`Missing`] if the library or one of its symbols is not there.
            pub(super) fn get() -> Result<&'static $table, Missing> {
                static LOADED: OnceLock<$table> = OnceLock::new();
                if let Some(table) = LOADED.get() {
                    return Ok(table);
                }
                let found = $table::load($library, $package)?;
                // Two callers at once look the same symbols up, and one table is kept.
                Ok(LOADED.get_or_init(|| found))
            }

            fn load(library: &'static str, package: &'static str) -> Result<$table, Missing> {
                let opened = open(library, package)?;
                Ok($table {
                    // SAFETY: the field's type is the symbol's in rdma-core's header, the same in every version of `.so.1`.
                    $($field: *unsafe { opened.get::<$type>($symbol) }
                        .map_err(|_| Missing::Symbol { library, symbol: $symbol })?,)*
                })
            }
        }
    };
}

/// Opened, and never closed: its functions are called for as long as the program runs, and it keeps threads and tables of
/// its own.
fn open(library: &'static str, package: &'static str) -> Result<&'static Library, Missing> {
    // SAFETY: what runs when rdma-core's libraries are loaded registers plug-ins and no more; they may be loaded from any thread.
    let opened = unsafe { Library::new(library) };
    let opened = opened.map_err(|error| Missing::Library { library, package, why: error.to_string() })?;
    Ok(Box::leak(Box::new(opened)))
}

// What we use of `libibverbs`. What its header has inline goes through a context's own table, and is not here. Functions that
// give a `c_int` give 0, or errno; those that give a pointer leave errno behind with a null.
table! { Verbs from "libibverbs.so.1" of "libibverbs1 ibverbs-providers" {
    get_device_list: "ibv_get_device_list" as unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device,
    free_device_list: "ibv_free_device_list" as unsafe extern "C" fn(*mut *mut ibv_device),
    get_device_name: "ibv_get_device_name" as unsafe extern "C" fn(*mut ibv_device) -> *const c_char,
    open_device: "ibv_open_device" as unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context,
    close_device: "ibv_close_device" as unsafe extern "C" fn(*mut ibv_context) -> c_int,
    query_device: "ibv_query_device" as unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int,
    query_port: "ibv_query_port" as unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int,
    // Context, room for entries, how many fit, flags (0), bytes of an entry; gives how many were written, or minus errno.
    query_gid_table: "_ibv_query_gid_table"
        as unsafe extern "C" fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize,
    alloc_pd: "ibv_alloc_pd" as unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd,
    dealloc_pd: "ibv_dealloc_pd" as unsafe extern "C" fn(*mut ibv_pd) -> c_int,
    reg_mr: "ibv_reg_mr" as unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr,
    dereg_mr: "ibv_dereg_mr" as unsafe extern "C" fn(*mut ibv_mr) -> c_int,
    create_comp_channel: "ibv_create_comp_channel" as unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_comp_channel,
    destroy_comp_channel: "ibv_destroy_comp_channel" as unsafe extern "C" fn(*mut ibv_comp_channel) -> c_int,
    // Context, how many entries, what is the caller's, channel, vector.
    create_cq: "ibv_create_cq"
        as unsafe extern "C" fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq,
    destroy_cq: "ibv_destroy_cq" as unsafe extern "C" fn(*mut ibv_cq) -> c_int,
    // Gives 0, or leaves errno behind.
    get_cq_event: "ibv_get_cq_event"
        as unsafe extern "C" fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int,
    ack_cq_events: "ibv_ack_cq_events" as unsafe extern "C" fn(*mut ibv_cq, c_uint),
    create_qp: "ibv_create_qp" as unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp,
    modify_qp: "ibv_modify_qp" as unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int,
    destroy_qp: "ibv_destroy_qp" as unsafe extern "C" fn(*mut ibv_qp) -> c_int,
} }

// What we use of `librdmacm`. Functions that give a `c_int` give 0, or leave errno behind.
table! { Manager from "librdmacm.so.1" of "librdmacm1" {
    create_event_channel: "rdma_create_event_channel" as unsafe extern "C" fn() -> *mut rdma_event_channel,
    destroy_event_channel: "rdma_destroy_event_channel" as unsafe extern "C" fn(*mut rdma_event_channel),
    create_id: "rdma_create_id" as unsafe extern "C" fn(
        *mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, rdma_port_space::Type,
    ) -> c_int,
    destroy_id: "rdma_destroy_id" as unsafe extern "C" fn(*mut rdma_cm_id) -> c_int,
    migrate_id: "rdma_migrate_id" as unsafe extern "C" fn(*mut rdma_cm_id, *mut rdma_event_channel) -> c_int,
    bind_addr: "rdma_bind_addr" as unsafe extern "C" fn(*mut rdma_cm_id, *mut sockaddr) -> c_int,
    listen: "rdma_listen" as unsafe extern "C" fn(*mut rdma_cm_id, c_int) -> c_int,
    // Most significant byte first.
    get_src_port: "rdma_get_src_port" as unsafe extern "C" fn(*mut rdma_cm_id) -> u16,
    // Id, from where (null: as routed), to where, milliseconds.
    resolve_addr: "rdma_resolve_addr"
        as unsafe extern "C" fn(*mut rdma_cm_id, *mut sockaddr, *mut sockaddr, c_int) -> c_int,
    resolve_route: "rdma_resolve_route" as unsafe extern "C" fn(*mut rdma_cm_id, c_int) -> c_int,
    // Id, what to set, which of it.
    init_qp_attr: "rdma_init_qp_attr" as unsafe extern "C" fn(*mut rdma_cm_id, *mut ibv_qp_attr, *mut c_int) -> c_int,
    connect: "rdma_connect" as unsafe extern "C" fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int,
    establish: "rdma_establish" as unsafe extern "C" fn(*mut rdma_cm_id) -> c_int,
    accept: "rdma_accept" as unsafe extern "C" fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int,
    reject: "rdma_reject" as unsafe extern "C" fn(*mut rdma_cm_id, *const c_void, u8) -> c_int,
    disconnect: "rdma_disconnect" as unsafe extern "C" fn(*mut rdma_cm_id) -> c_int,
    get_cm_event: "rdma_get_cm_event" as unsafe extern "C" fn(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int,
    ack_cm_event: "rdma_ack_cm_event" as unsafe extern "C" fn(*mut rdma_cm_event) -> c_int,
} }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_its_package() {
        let missing = Verbs::load("libforebay-not-there.so.1", "that-package").err().expect("there is no such library");
        let text = missing.to_string();
        assert!(text.contains("libforebay-not-there.so.1") && text.contains("that-package"), "{text}");
    }

    #[test]
    fn a_library_without_a_symbol_is_named_with_the_symbol() {
        let missing = Verbs::load("libc.so.6", "libc6").err().expect("libc has no verbs");
        assert_eq!(missing, Missing::Symbol { library: "libc.so.6", symbol: "ibv_get_device_list" });
    }
}

//! What the sanitizer is to find. Run by scripts/check-memory alone, which expects it to end the program.

use super::{anyone, slab};

#[test]
#[ignore = "ends the program"]
#[allow(unsafe_code)]
fn a_frame_used_after_it_was_given_back() {
    let mut lease = slab(2).try_lease(&anyone(), 8192).unwrap();
    let last = lease.as_mut_ptr().wrapping_add(5000);
    lease.shrink(4096);
    // SAFETY: there is none: the frame was given back. That is what has to be noticed.
    let byte = unsafe { last.read_volatile() };
    assert_eq!(byte, 0);
}

//! What the facts mean. Each check is a function of the facts alone, and `None` where it has nothing to say.

mod machine;
mod rdma;
mod server;

pub use rdma::usable as rdma_usable;

use super::facts::Facts;
use super::finding::Finding;

/// One line of the report.
pub type Check = fn(&Facts) -> Option<Finding>;

/// In the order in which they are reported.
pub const CHECKS: &[Check] = &[
    machine::memory,
    machine::locked,
    machine::huge_pages,
    machine::uring,
    machine::udp_buffers,
    machine::udp_offload,
    machine::packets,
    rdma::devices,
    rdma::libraries,
    rdma::providers,
    rdma::nodes,
    rdma::opened,
    rdma::ports,
    rdma::addresses,
    rdma::packets,
    rdma::path,
    server::udp,
    server::trust,
    server::clock,
    server::round_trip,
    server::packets,
    server::speed,
];

#[cfg(test)]
pub mod tests {
    use super::super::facts::tests::healthy;
    use super::super::finding::Level;
    use super::*;

    /// What `check` says of a healthy machine that this was done to.
    pub fn after(check: Check, harm: impl FnOnce(&mut Facts)) -> Finding {
        let mut facts = healthy();
        harm(&mut facts);
        check(&facts).expect("something to say")
    }

    pub fn says(finding: &Finding, level: Level, found: &str, mend: &str) {
        assert_eq!(finding.level, level, "{finding:?}");
        assert!(finding.found.contains(found), "{finding:?}");
        assert!(finding.mend.as_deref().unwrap_or("").contains(mend), "{finding:?}");
    }

    #[test]
    fn nothing_is_wrong_with_a_healthy_machine_and_each_check_says_so() {
        let facts = healthy();
        let findings: Vec<Finding> = CHECKS.iter().filter_map(|check| check(&facts)).collect();
        assert_eq!(findings.len(), CHECKS.len());
        for finding in &findings {
            assert!(finding.level == Level::Ok && finding.mend.is_none() && !finding.found.is_empty(), "{finding:?}");
        }
        let mut names: Vec<_> = findings.iter().map(|finding| finding.check).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CHECKS.len(), "each has a name of its own");
    }
}

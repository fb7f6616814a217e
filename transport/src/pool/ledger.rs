//! One budget, and everything that holds memory against it. Pure.

use std::fmt;

/// Something that may hold memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub name: &'static str,
    /// The most it may hold, in bytes.
    pub bytes: u64,
}

/// What a process may hold, and who may hold it.
#[derive(Clone, Debug)]
pub struct Ledger {
    budget: u64,
    claims: Vec<Claim>,
}

impl Ledger {
    pub fn new(budget: u64) -> Ledger {
        Ledger { budget, claims: Vec::new() }
    }

    /// Enters a claim, or says why it does not fit.
    pub fn claim(&mut self, name: &'static str, bytes: u64) -> Result<(), OverBudget> {
        let claim = Claim { name, bytes };
        if bytes > self.remaining() {
            return Err(OverBudget { budget: self.budget, claims: self.claims.clone(), refused: claim });
        }
        self.claims.push(claim);
        Ok(())
    }

    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes not claimed yet.
    pub fn remaining(&self) -> u64 {
        self.budget - self.claims.iter().map(|claim| claim.bytes).sum::<u64>()
    }

    pub fn claims(&self) -> &[Claim] {
        &self.claims
    }
}

/// A claim that does not fit. Its text is the sum that shows why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverBudget {
    pub budget: u64,
    pub claims: Vec<Claim>,
    pub refused: Claim,
}

impl fmt::Display for OverBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.claims.iter().map(|claim| claim.bytes).sum::<u64>().saturating_add(self.refused.bytes);
        write!(f, "the memory budget is {} bytes, but ", self.budget)?;
        for claim in &self.claims {
            write!(f, "{} {} + ", claim.name, claim.bytes)?;
        }
        write!(f, "{} {} = {} bytes", self.refused.name, self.refused.bytes, total)
    }
}

impl std::error::Error for OverBudget {}

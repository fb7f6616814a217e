//! How long a client is there: what was given to it over one connection can be bound to that connection's life.

use tokio::sync::watch;

/// A connection that requests come by. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Session(watch::Receiver<()>);

/// Keeps a session alive. Dropping it ends the session.
#[derive(Debug)]
pub struct SessionLife(#[allow(dead_code)] watch::Sender<()>);

impl Session {
    pub fn begin() -> (SessionLife, Session) {
        let (life, session) = watch::channel(());
        (SessionLife(life), Session(session))
    }

    pub fn is_over(&self) -> bool {
        // Nothing is ever sent: what can be said is that nobody is left who could.
        self.0.has_changed().is_err()
    }

    /// Ready when it is over.
    pub async fn over(&mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_session_lasts_as_long_as_its_life() {
        let (life, session) = Session::begin();
        let mut other = session.clone();
        assert!(!session.is_over());
        let waiting = tokio::spawn(async move { other.over().await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(life);
        waiting.await.unwrap();
        assert!(session.is_over());
    }
}

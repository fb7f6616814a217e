//! Requests and answers.

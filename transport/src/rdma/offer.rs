//! What a server answers to who asks to be let in, and what it means when it is a no.

use super::frame::{VERSION_MAX, VERSION_MIN};
use super::hello::Ticket;
use crate::dial::{Asking, Document, RailError};
use crate::wire::describe::RdmaOffer;
use crate::wire::problem;

/// Waits for the offer, and for the ticket in it.
pub async fn offer(asking: Asking) -> Result<(RdmaOffer, Ticket), RailError> {
    match asking.await {
        Ok(document) => read(&document),
        Err(error) => Err(RailError::Failed(error.to_string())),
    }
}

fn read(Document { status, body }: &Document) -> Result<(RdmaOffer, Ticket), RailError> {
    if *status != 200 {
        let problem = problem::parse(*status, body);
        let why = format!("the server says {status}: {}", problem.detail.unwrap_or(problem.title));
        return Err(match status {
            // Too slow or too busy now. All else of this kind is about the request, and it will be the same one.
            408 | 429 => RailError::Failed(why),
            400..=499 => RailError::Refused(why),
            // Also that it does not listen anywhere: its ports come up again.
            _ => RailError::Failed(why),
        });
    }
    let nonsense = |what: &str| RailError::Failed(format!("the server's offer makes no sense: {what}"));
    let offer: RdmaOffer = serde_json::from_slice(body).map_err(|error| nonsense(&error.to_string()))?;
    let theirs = offer.wire;
    if theirs.min > VERSION_MAX || theirs.max < VERSION_MIN {
        return Err(RailError::Refused(format!(
            "the server speaks versions {} to {} of the frames, this client {VERSION_MIN} to {VERSION_MAX}",
            theirs.min, theirs.max
        )));
    }
    let ticket = Ticket::parse(&offer.ticket).ok_or_else(|| nonsense("the ticket is none"))?;
    if offer.endpoints.is_empty() {
        return Err(nonsense("no endpoint is named"));
    }
    Ok((offer, ticket))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::problem::Kind;

    fn answer(status: u16, body: impl Into<Vec<u8>>) -> Document {
        Document { status, body: body.into().into() }
    }

    fn good() -> serde_json::Value {
        serde_json::json!({
            "wire": { "min": 1, "max": 3 },
            "ticket": "ab".repeat(32),
            "expires_ms": 5000,
            "endpoints": [{
                "address": "10.7.0.1", "port": 4433, "mbps": 0, "mtu": 1024, "gid": "roce-v2", "fabric": "10.7.0.0/24"
            }],
        })
    }

    #[test]
    fn an_offer_has_a_ticket_and_a_place_to_take_it() {
        let (offer, ticket) = read(&answer(200, good().to_string())).unwrap();
        assert_eq!((offer.endpoints[0].port, ticket.to_hex()), (4433, "ab".repeat(32)));
    }

    #[test]
    fn what_another_try_may_change_is_told_from_what_it_will_not() {
        let refused = |document| matches!(read(&document), Err(RailError::Refused(_)));
        let problem = |kind: Kind| answer(kind.status(), serde_json::to_vec(&kind.problem("of course")).unwrap());
        for (kind, final_one) in [
            (Kind::Forbidden, true),
            (Kind::NotFound, true),
            (Kind::MethodNotAllowed, true),
            (Kind::Busy, false),
            (Kind::Timeout, false),
            (Kind::Unavailable, false),
            (Kind::Internal, false),
        ] {
            let error = read(&problem(kind)).unwrap_err();
            assert!(error.to_string().ends_with(": of course"), "{error}");
            assert_eq!(refused(problem(kind)), final_one, "{kind:?}");
        }
        assert!(refused(answer(404, "<html>")) && !refused(answer(429, "")) && !refused(answer(302, "")));
    }

    #[test]
    fn offers_of_no_use_say_why() {
        let with = |key: &str, value: serde_json::Value| {
            let mut bad = good();
            bad[key] = value;
            read(&answer(200, bad.to_string())).unwrap_err()
        };
        let (later, earlier) = (serde_json::json!({"min": 2, "max": 9}), serde_json::json!({"min": 0, "max": 0}));
        for wire in [later, earlier] {
            assert!(matches!(with("wire", wire), RailError::Refused(why) if why.contains("versions")));
        }
        for (key, value, says) in [
            ("ticket", "ab".into(), "ticket"),
            ("endpoints", serde_json::json!([]), "endpoint"),
            ("wire", 1.into(), "wire"),
        ] {
            let error = with(key, value);
            assert!(matches!(&error, RailError::Failed(why) if why.contains("makes no sense")), "{error}");
            assert!(error.to_string().contains(says) || key == "wire", "{error}");
        }
        assert!(matches!(read(&answer(200, "")), Err(RailError::Failed(_))));
    }
}

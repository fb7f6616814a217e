//! The files that the AWS tools keep credentials in, which `object_store` does not read.
//!
//! Read: `credentials` and `config` in `~/.aws` (or where `AWS_SHARED_CREDENTIALS_FILE` and `AWS_CONFIG_FILE` say), of the
//! profile that `AWS_PROFILE` names, else `default`: keys, session token, region, endpoint. Not read: profiles that lead to
//! others (`role_arn`, `source_profile`), SSO, `credential_process`.

use std::collections::HashMap;
use std::env;
use std::fs;
use std::path::PathBuf;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};

/// Settings of a profile that lead to credentials by ways that are not gone here.
const ELSEWHERE: [&str; 6] =
    ["role_arn", "source_profile", "credential_process", "sso_session", "sso_start_url", "login_session"];

/// Adds what the profile's files say where the environment says nothing; or says why the profile is of no use.
pub(super) fn aws(builder: AmazonS3Builder) -> Result<AmazonS3Builder, String> {
    let home = env::var_os("HOME").map(PathBuf::from).unwrap_or_default().join(".aws");
    let file = |variable: &str, name: &str| env::var_os(variable).map_or_else(|| home.join(name), PathBuf::from);
    let named = ["AWS_PROFILE", "AWS_DEFAULT_PROFILE"].into_iter().find_map(|variable| env::var(variable).ok());
    let named = named.filter(|name| !name.is_empty());
    let profile = named.as_deref().unwrap_or("default");
    let read = |variable, name| fs::read_to_string(file(variable, name)).unwrap_or_default();
    let files = [read("AWS_CONFIG_FILE", "config"), read("AWS_SHARED_CREDENTIALS_FILE", "credentials")];
    let sections = files.iter().filter_map(|file| section(file, profile));
    let settings = sections.reduce(|mut all, more| {
        all.extend(more);
        all
    });
    match settings {
        Some(settings) => apply(builder, profile, &settings),
        None if named.is_some() => Err(format!("there is no profile {profile} in the files of the AWS tools")),
        None => Ok(builder),
    }
}

fn apply(
    mut builder: AmazonS3Builder,
    profile: &str,
    settings: &HashMap<String, String>,
) -> Result<AmazonS3Builder, String> {
    // Keys belong together: those of the environment, or those of the profile.
    let own_keys = builder.get_config_value(&AmazonS3ConfigKey::AccessKeyId).is_some();
    let without = !own_keys && !settings.contains_key("aws_access_key_id");
    if let Some(way) = ELSEWHERE.iter().find(|way| without && settings.contains_key(**way)) {
        return Err(format!(
            "the profile {profile} leads to its keys by {way}, which is not supported: `eval \"$(aws configure \
             export-credentials --profile {profile} --format env)\"` puts them into the environment"
        ));
    }
    for (name, key) in [
        ("aws_access_key_id", AmazonS3ConfigKey::AccessKeyId),
        ("aws_secret_access_key", AmazonS3ConfigKey::SecretAccessKey),
        ("aws_session_token", AmazonS3ConfigKey::Token),
        ("region", AmazonS3ConfigKey::Region),
        ("endpoint_url", AmazonS3ConfigKey::Endpoint),
    ] {
        let of_keys = name.starts_with("aws_");
        let taken = if of_keys { own_keys } else { builder.get_config_value(&key).is_some() };
        if let Some(value) = settings.get(name).filter(|_| !taken) {
            builder = builder.with_config(key, value);
        }
    }
    Ok(builder)
}

/// The settings of one profile, if there is one: `[name]`, or `[profile name]` as the file `config` has it.
fn section(text: &str, profile: &str) -> Option<HashMap<String, String>> {
    let mut settings = HashMap::new();
    let (mut ours, mut found) = (false, false);
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.split(']').next()) {
            ours = name.strip_prefix("profile ").unwrap_or(name).trim() == profile;
            found |= ours;
        } else if let Some((name, value)) = line.split_once('=').filter(|_| ours) {
            settings.insert(name.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    found.then_some(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
[default]\naws_access_key_id = one\naws_secret_access_key=first\n\n# a comment\n[profile two]\n\
aws_access_key_id=two\naws_secret_access_key = se=cond\nregion = eu-west-3\nendpoint_url=http://localhost:9000\n";

    fn value(builder: &AmazonS3Builder, key: AmazonS3ConfigKey) -> Option<String> {
        builder.get_config_value(&key)
    }

    #[test]
    fn a_profile_gives_keys_region_and_endpoint() {
        let built = apply(AmazonS3Builder::new(), "two", &section(FILE, "two").expect("there")).expect("keys");
        assert_eq!(value(&built, AmazonS3ConfigKey::AccessKeyId).as_deref(), Some("two"));
        assert_eq!(value(&built, AmazonS3ConfigKey::SecretAccessKey).as_deref(), Some("se=cond"));
        assert_eq!(value(&built, AmazonS3ConfigKey::Region).as_deref(), Some("eu-west-3"));
        assert_eq!(value(&built, AmazonS3ConfigKey::Endpoint).as_deref(), Some("http://localhost:9000"));
        assert_eq!(section(FILE, "three"), None);
    }

    #[test]
    fn keys_of_the_environment_are_not_mixed_with_the_files() {
        let environment = AmazonS3Builder::new().with_access_key_id("own").with_token("own");
        let built = apply(environment, "default", &section(FILE, "default").expect("there")).expect("keys");
        assert_eq!(value(&built, AmazonS3ConfigKey::AccessKeyId).as_deref(), Some("own"));
        assert_eq!(value(&built, AmazonS3ConfigKey::SecretAccessKey), None);
    }

    #[test]
    fn a_profile_that_leads_elsewhere_says_what_helps() {
        let file = "[profile sso]\nsso_session = corp\n";
        let settings = section(file, "sso").expect("there");
        let error = apply(AmazonS3Builder::new(), "sso", &settings).expect_err("no keys");
        assert!(error.contains("sso_session") && error.contains("export-credentials --profile sso"), "{error}");
        let own = AmazonS3Builder::new().with_access_key_id("own").with_secret_access_key("own");
        assert!(apply(own, "sso", &settings).is_ok(), "the environment comes first");
    }
}

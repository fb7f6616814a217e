//! Turns features into the configuration that the pool looks at.

fn main() {
    for (feature, cfg) in [("LOOM", "forebay_loom"), ("ASAN", "forebay_asan")] {
        println!("cargo::rustc-check-cfg=cfg({cfg})");
        if std::env::var_os(format!("CARGO_FEATURE_{feature}")).is_some() {
            println!("cargo::rustc-cfg={cfg}");
        }
    }
    println!("cargo::rerun-if-changed=build.rs");
}

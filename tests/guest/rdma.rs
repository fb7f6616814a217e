//! `forebay serve --rdma` and `forebay read` on soft-RoCE: in one guest, and from one to another.

use forebay_system::tars::Sizes;

use super::pair::{World, assert_same};

#[test]
fn an_epoch_comes_by_rdma_in_one_guest() {
    let world = World::new("rdma-alone", 300, Sizes::ImageNet);
    let script = r#"serve set="$SHARDS" --rdma set; served; read_set rdma --fabric rdma; read_set auto"#;
    let Some(_) = world.run_alone(300, script) else { return };
    let expected = world.expected(&[]);
    for name in ["rdma", "auto"] {
        assert_same(&world.summary(name), &expected);
    }
    let summary = world.summary("rdma");
    assert_eq!((&summary["fabric"], &summary["fabric_failovers"]), (&"rdma".into(), &0.into()), "{summary}");
}

#[test]
fn an_epoch_comes_by_rdma_from_another_machine() {
    let world = World::new("rdma-pair", 192, Sizes::ImageNet);
    let a = r#"serve set="$SHARDS" --rdma set; hear done 300"#;
    let b = "served; read_set rdma --fabric rdma; say done";
    let Some(_) = world.run(300, a, b) else { return };
    let summary = world.summary("rdma");
    assert_same(&summary, &world.expected(&[]));
    assert_eq!(summary["fabric"], "rdma", "{summary}");
}

/// That RDMA is taken again is for faster machines to show: a probe has a second, and here HTTP/3 takes longer than that for the
/// ticket while it carries samples.
#[test]
fn a_path_that_breaks_in_mid_epoch_is_left_without_losing_a_sample() {
    let world = World::new("rdma-cut", 96, Sizes::ImageNet);
    let a = r#"serve set="$SHARDS" --rdma set; hear done 300"#;
    // What says that RDMA is in use, or no more, is the log. Its packets alone are dropped: HTTP/3 goes on.
    let b = r#"served; comes() { until_true 60 grep -q "samples of set come over $1" /run/log; : >/run/log; }
        touch /run/log; read_set cut --epochs 16 --log info 2>>/run/log & READ=$!
        comes rdma
        tc qdisc add dev $GUEST_DEVICE clsact
        tc filter add dev $GUEST_DEVICE ingress protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff action drop
        comes h3
        wait $READ; say done"#;
    let Some(_) = world.run(300, a, b) else { return };
    let summary = world.summary("cut");
    assert_same(&summary, &world.expected(&["--epochs", "16"]));
    assert_eq!((summary["fabric_failovers"].as_u64(), &summary["fabric"]), (Some(1), &"h3".into()), "{summary}");
}

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

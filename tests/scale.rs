//! Ten million samples cost what a hundred thousand do.

use std::time::Duration;

use forebay_system::allocations::Counting;
use forebay_system::scale::cost;
use forebay_system::scratch::Scratch;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Opening takes no time, and neither the open dataset, nor the local fabric, nor a server and its client take more
/// heap, though there are a hundred times as many samples. (One test, because all of the process's heap is counted.)
#[test]
fn ten_million_samples_cost_what_a_hundred_thousand_do() {
    let scratch = Scratch::new("scale");
    // What is allocated once in a process's life is allocated here.
    cost(scratch.path(), 50_000);
    let (few, many) = (cost(scratch.path(), 100_000), cost(scratch.path(), 10_000_000));
    println!("{few:?}\n{many:?}");
    assert!(many.opening < Duration::from_secs(1), "{many:?}");
    for (what, few, many) in
        [("opened", few.open, many.open), ("local", few.local, many.local), ("served", few.served, many.served)]
    {
        let growth = many as f64 / few as f64 - 1.0;
        assert!(growth < 0.05, "{what}: {few} bytes for 10^5 samples, {many} for 10^7: {:.1}% more", growth * 100.0);
    }
}

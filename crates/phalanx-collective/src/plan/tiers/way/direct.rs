//! To every rank of the group without detour: what is reduced comes one after the other, so that the order is always the same; what is final goes
//! to all at once.

use super::{
    super::super::{
        Extent,
        draft::swap,
        step::{Buf, Fold, Recv, Send, Step},
    },
    Leg, Steps,
};

pub fn reduce_scatter(leg: Leg, range: Extent, last: bool) -> Steps {
    let n = leg.n();
    Box::new((1..n).map(move |s| {
        let (to, from) = ((leg.place + s) % n, (leg.place + n - s) % n);
        let fold = if last && s == n - 1 { Fold::ReduceLast } else { Fold::Reduce };
        let (sent, own) = (range.part(n, to).of(Buf::Out), leg.share(range).of(Buf::Out));
        swap(leg.seats[to as usize], sent, leg.seats[from as usize], own, fold)
    }))
}

pub fn all_gather(leg: &Leg, range: Extent) -> Steps {
    let n = leg.n();
    let others = || (1..n).map(|s| (leg.place + s) % n);
    let own = leg.share(range).of(Buf::Out);
    let seat = |i: u32| leg.seats[i as usize];
    let all = Step::Exchange {
        sends: others().map(|i| Send { to: seat(i), src: own }).collect(),
        recvs: others()
            .map(|i| Recv { from: seat(i), dst: range.part(n, i).of(Buf::Out), fold: Fold::Store })
            .collect(),
    };
    Box::new(std::iter::once(all))
}

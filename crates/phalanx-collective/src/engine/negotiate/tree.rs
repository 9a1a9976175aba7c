//! Which rank sends to which: a tree over the ranks of a process set, so that agreement takes a logarithmic number of messages in a row.

/// Children of one node. Wide enough to be shallow, narrow enough that no node talks to very many.
const ARITY: usize = 4;

/// One node's view of the tree; place 0 is the root.
#[derive(Clone, Copy, Debug)]
pub struct Tree {
    pub me: usize,
    pub n: usize,
}

impl Tree {
    pub fn parent(self) -> Option<usize> {
        self.me.checked_sub(1).map(|i| i / ARITY)
    }

    pub fn children(self) -> std::ops::Range<usize> {
        let first = self.me * ARITY + 1;
        first.min(self.n)..(first + ARITY).min(self.n)
    }

    /// The neighbour below which `place` is; `None` for this node itself and for places that are not below it.
    pub fn branch(self, mut place: usize) -> Option<usize> {
        while place > self.me {
            let above = (place - 1) / ARITY;
            if above == self.me {
                return Some(place);
            }
            place = above;
        }
        None
    }

    /// How many places a child and all below it are.
    pub fn weight(self, child: usize) -> usize {
        let (mut first, mut last, mut weight) = (child, child, 0);
        while first < self.n {
            weight += last.min(self.n - 1) - first + 1;
            (first, last) = (first * ARITY + 1, last * ARITY + ARITY);
        }
        weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_below_exactly_one_branch_of_each_node_above_it() {
        for n in 1..=90 {
            for me in 0..n {
                let tree = Tree { me, n };
                let mut weights = vec![0; n];
                for place in 0..n {
                    if let Some(child) = tree.branch(place) {
                        assert!(tree.children().contains(&child));
                        weights[child] += 1;
                    }
                }
                for child in tree.children() {
                    assert_eq!(Tree { me: child, n }.parent(), Some(me));
                    assert_eq!(tree.weight(child), weights[child], "n={n} me={me}");
                }
            }
            assert_eq!(
                Tree { me: 0, n }.children().map(|c| Tree { me: 0, n }.weight(c)).sum::<usize>(),
                n - 1
            );
        }
    }
}

//! Helpers shared by tests of lane IR.

use super::ir::{Binary, Compare, Dag, Node, Unary};

pub const BINARY: [Binary; 17] = [
    Binary::Add,
    Binary::Subtract,
    Binary::Multiply,
    Binary::Divide,
    Binary::Modulo,
    Binary::DivideSigned,
    Binary::ModuloSigned,
    Binary::And,
    Binary::Or,
    Binary::Xor,
    Binary::ShiftLeft,
    Binary::ShiftRight,
    Binary::ShiftRightSigned,
    Binary::Min,
    Binary::Max,
    Binary::MinSigned,
    Binary::MaxSigned,
];

pub const UNARY: [Unary; 7] = [
    Unary::Invert,
    Unary::SwapBytes16,
    Unary::SwapBytes32,
    Unary::CountOnes,
    Unary::LeadingZeros,
    Unary::TrailingZeros,
    Unary::ReverseBits,
];

pub const COMPARE: [Compare; 5] =
    [Compare::Equal, Compare::Less, Compare::LessEqual, Compare::LessSigned, Compare::LessEqualSigned];

/// Mixes nodes into one, so that each bit of each node affects the result.
pub fn mixed(dag: &mut Dag, all: &[Node]) -> Node {
    let mut sum = dag.constant(0);
    for &node in all {
        let factor = dag.constant(0x9e37_79b1);
        let turned = dag.binary(Binary::Multiply, sum, factor);
        sum = dag.binary(Binary::Xor, turned, node);
    }
    sum
}

//! What the tests of objects need besides devices and the kernel: whether a program's packets may
//! go in any order, what of the page about objects it uses, and the table of who does what the
//! kernel does.

use std::collections::{BTreeMap, BTreeSet};

use naga::{Block, Statement};
use portcullis_core::program::Program;

/// Whether a program does nothing to its maps but look at them and add to them; maps with `scratch`
/// in their names apart, where each packet has what it has written itself. What packets get by that
/// still may depend on their order, which the kernel can be asked.
pub fn only_adds(program: &Program) -> bool {
    let module = program.module();
    let mut called = BTreeSet::new();
    calls(body(program), &mut called);
    let names = called.into_iter().filter_map(|function| module.functions[function].name.as_deref());
    let names: Vec<&str> = names.collect();
    let allowed = ["find", "read", "get", "add", "add64", "add_part", "match"];
    program.maps().iter().filter(|map| !map.name.contains("scratch")).all(|map| {
        let of_map = |name: &&str| {
            let rest = name.strip_prefix("x_").or(name.strip_prefix("pc_do_")).unwrap_or(name);
            let rest = rest.strip_prefix(map.name.as_str());
            rest.and_then(|rest| rest.strip_prefix('_')).is_some_and(|end| !allowed.contains(&end))
        };
        // A name may begin with another map's: then it is looked at twice, and one of them forbids
        // it for both.
        !names.iter().any(of_map)
    })
}

/// What a program does: where the filter is what counts its traps, that is in a function of its
/// own.
fn body(program: &Program) -> &Block {
    let functions = &program.module().functions;
    let own = functions.iter().find(|(_, function)| function.name.as_deref() == Some("xdp_program"));
    own.map_or(&functions[program.filter()].body, |(_, function)| &function.body)
}

fn calls(block: &Block, into: &mut BTreeSet<naga::Handle<naga::Function>>) {
    for statement in block {
        match statement {
            Statement::Call { function, .. } => drop(into.insert(*function)),
            Statement::Block(inner) => calls(inner, into),
            Statement::If { accept, reject, .. } => [accept, reject].into_iter().for_each(|it| calls(it, into)),
            Statement::Switch { cases, .. } => cases.iter().for_each(|case| calls(&case.body, into)),
            Statement::Loop { body, continuing, .. } => [body, continuing].into_iter().for_each(|it| calls(it, into)),
            _ => {}
        }
    }
}

/// The words in code of the row of a page's first table that begins so.
pub fn claimed(page: &str, row: &str) -> Vec<String> {
    let start = format!("| {row} |");
    let line = page.lines().find(|line| line.starts_with(&start)).unwrap_or_default();
    line.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Helpers and kinds of maps that a program uses, as the page about objects has their names.
pub fn used(program: &Program) -> BTreeSet<String> {
    let Some(origin) = portcullis_xdp::ObjectInfo::of(program) else { return BTreeSet::new() };
    let helpers = origin.helpers.iter().map(|name| name.trim_start_matches("bpf_").to_owned());
    // Global variables are an array of the kernel's, and none of the object's.
    let maps = origin.maps.iter().flatten().filter(|map| map.data.is_none());
    helpers.chain(maps.map(|map| map.ty.name())).collect()
}

/// Returns the features of a program that matter to a device: helpers, map types, global variable
/// sections, the functions behind them by map kind, and whether the program has loops.
pub fn parts(program: &Program) -> BTreeSet<String> {
    let mut parts = used(program);
    let Some(origin) = portcullis_xdp::ObjectInfo::of(program) else { return parts };
    let module = program.module();
    let body = body(program);
    let mut called = BTreeSet::new();
    calls(body, &mut called);
    for function in called {
        let name = module.functions[function].name.as_deref().unwrap_or_default();
        let rest = name.strip_prefix("x_").unwrap_or(name);
        // The longest name: one may begin with another's.
        let of_map = program.maps().iter().zip(&origin.maps).filter_map(|(map, definition)| {
            let what = rest.strip_prefix(map.name.as_str())?.strip_prefix('_')?;
            let kind = definition.as_ref().map_or_else(|| map.name.clone(), |it| it.ty.name());
            Some((map.name.len(), format!("{kind} {what}")))
        });
        parts.insert(of_map.max().map_or_else(|| name.to_owned(), |(_, what)| what));
    }
    let data = origin.maps.iter().flatten().filter(|map| map.data.is_some());
    parts.extend(data.map(|map| map.name.clone()));
    parts.extend(loops(body).then(|| "a loop".to_owned()));
    parts
}

fn loops(block: &Block) -> bool {
    block.iter().any(|statement| match statement {
        Statement::Loop { .. } => true,
        Statement::Block(inner) => loops(inner),
        Statement::If { accept, reject, .. } => loops(accept) || loops(reject),
        Statement::Switch { cases, .. } => cases.iter().any(|case| loops(&case.body)),
        _ => false,
    })
}

/// Who does what the kernel does: programs by devices.
#[derive(Debug, Default)]
pub struct Table {
    devices: Vec<String>,
    rows: BTreeMap<String, BTreeMap<usize, Cell>>,
}

/// How many packets a program was run over, and whether anything differs.
#[derive(Debug, Clone, Copy)]
struct Cell {
    packets: usize,
    differs: bool,
}

impl Table {
    /// Notes what became of a program on a device.
    pub fn note(&mut self, device: &str, program: &str, packets: usize, differs: bool) {
        let number = self.devices.iter().position(|it| it == device).unwrap_or_else(|| {
            self.devices.push(device.to_owned());
            self.devices.len() - 1
        });
        self.rows.entry(program.to_owned()).or_default().insert(number, Cell { packets, differs });
    }

    /// One program a line, one device a column: how many packets were compared.
    pub fn print(&self) {
        self.devices.iter().enumerate().for_each(|(number, device)| println!("[{number:2}] {device}"));
        let width = self.rows.keys().map(String::len).max().unwrap_or(0);
        let head: String = (0..self.devices.len()).map(|number| format!("{:>6}", format!("[{number}]"))).collect();
        println!("{:width$}{head}", "packets the same as in the kernel");
        let (mut all, mut wrong) = (0, 0);
        for (program, cells) in &self.rows {
            let cell = |number| match cells.get(&number) {
                None => format!("{:>6}", "-"),
                Some(Cell { differs: true, .. }) => format!("{:>6}", "DIFF"),
                Some(Cell { packets, .. }) => format!("{packets:>6}"),
            };
            let line: String = (0..self.devices.len()).map(cell).collect();
            println!("{program:width$}{line}");
            all += cells.values().map(|cell| cell.packets).sum::<usize>();
            wrong += cells.values().filter(|cell| cell.differs).count();
        }
        println!("{} programs, {} devices, {all} packets, {wrong} differences", self.rows.len(), self.devices.len());
    }
}

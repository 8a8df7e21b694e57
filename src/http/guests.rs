//! Who is connected, and who goes when the house is full: the one whose last sign of life is the oldest.

use std::cell::Cell;
use std::rc::Rc;

/// The time of a sign of life, as a count of them all: a client cannot have it by sending bytes, only by being accepted
/// or answered, so that one byte a second does not keep a seat.
#[derive(Clone, Default)]
struct Moments(Rc<Cell<u64>>);

impl Moments {
    fn next(&self) -> u64 {
        self.0.set(self.0.get() + 1);
        self.0.get()
    }
}

/// A connection's own record of when it was last accepted or answered.
#[derive(Clone)]
pub struct Activity {
    moments: Moments,
    last: Rc<Cell<u64>>,
    held: Rc<Cell<bool>>,
    /// How many seats are held, and how many may be.
    holds: Rc<Cell<usize>>,
    most: usize,
}

/// While it lives, the seat is not taken.
pub struct Held {
    seat: Rc<Cell<bool>>,
    holds: Rc<Cell<usize>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.seat.set(false);
        self.holds.set(self.holds.get() - 1);
    }
}

impl Activity {
    /// Notes that a request has just been answered.
    pub fn note(&self) {
        self.last.set(self.moments.next());
    }

    /// Keeps the seat for one who has to wait long for its answer. No more than half of all seats can be kept so, or those
    /// who wait would keep the others out; who comes after that waits as one who may be evicted.
    pub fn hold(&self) -> Option<Held> {
        if self.held.get() || self.holds.get() >= self.most {
            return None;
        }
        self.held.set(true);
        self.holds.set(self.holds.get() + 1);
        Some(Held { seat: self.held.clone(), holds: self.holds.clone() })
    }
}

/// The connections that are open, at most as many as there are seats. `T` is what ends one.
pub struct Guests<T> {
    seats: usize,
    moments: Moments,
    holds: Rc<Cell<usize>>,
    seated: Vec<Guest<T>>,
}

struct Guest<T> {
    who: T,
    activity: Activity,
}

impl<T> Guests<T> {
    /// Room for that many, at least one.
    pub fn new(seats: usize) -> Self {
        let seats = seats.max(1);
        Self { seats, moments: Moments::default(), holds: Rc::default(), seated: Vec::with_capacity(seats) }
    }

    /// Whether the next one to come needs another's seat.
    pub fn is_full(&self) -> bool {
        self.seated.len() >= self.seats
    }

    /// A new one's record, as of now.
    pub fn arrival(&self) -> Activity {
        let (moments, holds) = (self.moments.clone(), self.holds.clone());
        let activity = Activity { moments, last: Rc::default(), held: Rc::default(), holds, most: self.seats / 2 };
        activity.note();
        activity
    }

    /// Gives a seat. The caller makes room first.
    pub fn seat(&mut self, who: T, activity: Activity) {
        debug_assert!(!self.is_full());
        self.seated.push(Guest { who, activity });
    }

    /// Takes the seat of the one that has been idle for longest, if any is here whose seat is not held; the caller ends it.
    pub fn evict(&mut self) -> Option<T> {
        let idle = |guest: &Guest<T>| guest.activity.last.get();
        let free = self.seated.iter().enumerate().filter(|(_, guest)| !guest.activity.held.get());
        let longest = free.min_by_key(|(_, guest)| idle(guest))?.0;
        Some(self.seated.swap_remove(longest).who)
    }

    /// Frees the seat of one that has left; one that was evicted before has none any more.
    pub fn leave(&mut self, left: impl Fn(&T) -> bool) {
        self.seated.retain(|guest| !left(&guest.who));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_idle_goes_first() {
        let mut guests = Guests::new(3);
        let activities: Vec<_> = (0..3)
            .map(|who| {
                let activity = guests.arrival();
                guests.seat(who, activity.clone());
                activity
            })
            .collect();
        assert!(guests.is_full());
        activities[0].note();
        assert_eq!(guests.evict(), Some(1));
        assert_eq!(guests.evict(), Some(2));
        assert_eq!(guests.evict(), Some(0));
        assert_eq!(guests.evict(), None);
    }

    #[test]
    fn a_seat_that_is_held_is_not_taken_and_half_of_them_can_be() {
        let mut guests = Guests::new(4);
        let activities: Vec<_> = (0..4)
            .map(|who| {
                let activity = guests.arrival();
                guests.seat(who, activity.clone());
                activity
            })
            .collect();
        let held: Vec<_> = activities.iter().map(Activity::hold).collect();
        assert_eq!(held.iter().filter(|held| held.is_some()).count(), 2);
        assert_eq!(guests.evict(), Some(2), "the first two are held");
        drop(held);
        assert!(activities[3].hold().is_some());
        assert_eq!((guests.evict(), guests.evict()), (Some(0), Some(1)));
    }

    #[test]
    fn who_leaves_frees_one_seat() {
        let mut guests = Guests::new(1);
        guests.seat('a', guests.arrival());
        guests.leave(|who| *who == 'b');
        assert!(guests.is_full());
        guests.leave(|who| *who == 'a');
        assert!(!guests.is_full());
    }
}

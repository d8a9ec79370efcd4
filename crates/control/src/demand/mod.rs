//! Where demand comes from, beside webhooks: deliveries that failed are asked for again, queues are polled, and scale sets
//! are listened to. None of them is trusted alone; all of them end in the same input.

pub(crate) mod report;

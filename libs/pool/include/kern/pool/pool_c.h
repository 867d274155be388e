#pragma once
/// The pool for C and for whatever binds to C: opaque handles, plain structs, status codes. Each
/// function does what its namesake of the C++ headers does; those say why.
/// Thread safety: one thread with a pool and all that came from it.
/// Ownership / lifetime: who gets a handle gives it back, once, before its pool. A function that
/// takes a handle over says so. Out parameters are written on KERN_POOL_OK only, but for `missing`.
/// Stability: within one KERN_POOL_API_VERSION structs, numbers and signatures stay; what is new
/// gets new names. No exception leaves; arguments that make no sense are KERN_POOL_INVALID.
/// Memory: handles and plans given back are handed out again, so that a steady state allocates
/// nothing; one given back twice, or used afterwards, may by then be somebody else's.
/// Does not: move bytes. Places are numbers; 0 is none.

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KERN_POOL_API_VERSION 1

typedef struct kern_pool kern_pool;
typedef struct kern_pool_lease kern_pool_lease;
typedef struct kern_pool_checkpoint kern_pool_checkpoint;
typedef struct kern_pool_parked kern_pool_parked;
typedef struct kern_pool_transfers kern_pool_transfers;
typedef struct kern_pool_tree kern_pool_tree;

typedef enum kern_pool_status {
  KERN_POOL_OK = 0,
  KERN_POOL_BUSY = 1,         /* passes: evict or wait; `missing` says how much */
  KERN_POOL_EXCEEDS_POOL = 2, /* never fits: `missing` says by how much */
  KERN_POOL_EXCEEDS_ROW = 3,  /* longer than a page table: likewise */
  KERN_POOL_NOT_FOUND = 4,    /* no usable prefix, or nothing to evict */
  KERN_POOL_INVALID = 5,      /* a mistake of the caller's; nothing happened */
  KERN_POOL_NO_MEMORY = 6,    /* the host has none for the bookkeeping; give the pool up */
  KERN_POOL_STALE = 7         /* the pool has changed since the view was taken: take another */
} kern_pool_status;

/* Counts include page 0 and slot 0, which are never granted. */
typedef struct kern_pool_geometry {
  uint32_t page_tokens;
  uint32_t pages;
  uint32_t slots;         /* not used without recurrent state */
  uint32_t recurrent;     /* 0 or 1: whether there is per-sequence state */
  uint32_t row_pages_max; /* entries of one page table */
  uint32_t reserved;      /* 0 */
  uint64_t host_bytes;    /* 0: no host tier, and the sizes are not used */
  uint64_t page_bytes;
  uint64_t slot_bytes;
} kern_pool_geometry;

typedef struct kern_pool_amount {
  uint32_t pages;
  uint32_t slots;
} kern_pool_amount;

/* What to copy on the device before the new handle's first use; a pair of 0 is none. */
typedef struct kern_pool_copies {
  uint32_t page_from, page_to;
  uint32_t slot_from, slot_to;
} kern_pool_copies;

/* A page or slot of the device and the byte of host memory where its own begin. */
typedef struct kern_pool_transfer {
  uint64_t host_offset;
  uint32_t device;
  uint32_t is_slot; /* 0: a page; 1: a slot */
} kern_pool_transfer;

typedef struct kern_pool_occupancy {
  uint32_t pages_free, pages_leased, pages_frozen;
  uint32_t slots_free, slots_leased, slots_frozen;
  uint32_t host_pages, host_slots;
} kern_pool_occupancy;

typedef struct kern_pool_evicted {
  uint32_t entries;
  kern_pool_amount freed;
} kern_pool_evicted;

/* What a lease or checkpoint names, read-only, as of one moment. The first four fields are to be
   read, the others are the pool's. */
typedef struct kern_pool_view {
  uint32_t positions;     /* of a lease: that its page table reaches; else the length */
  uint32_t writable_from; /* of a lease: what lies before is frozen; else `positions` */
  uint32_t page_count;
  uint32_t slot;
  uint64_t version;
  const kern_pool* pool;
  const kern_pool_lease* lease;
  const kern_pool_checkpoint* checkpoint;
} kern_pool_view;

/* The same of a parked prefix. */
typedef struct kern_pool_parked_view {
  uint32_t positions;
  uint32_t page_count;
  uint64_t slot_offset; /* byte of host memory where its state begins; UINT64_MAX: it has none */
  uint64_t version;
  const kern_pool* pool;
  const kern_pool_parked* parked;
} kern_pool_parked_view;

/* What a policy may judge an entry of the tree by. */
typedef struct kern_pool_entry {
  uint32_t len;          /* positions of the checkpoint */
  uint32_t ancestor_len; /* positions of the nearest shorter entry on its path; 0: none */
  uint64_t hits;         /* lookups that returned it */
  uint32_t recurrent;    /* 0 or 1: whether it holds a slot */
  uint32_t reserved;
} kern_pool_entry;

/* Orders entries for eviction: least worth first, equals least recently hit first, leaves before
   their ancestors. Called from within the tree's functions, which it must not call. */
typedef struct kern_pool_policy {
  double (*worth)(void* context, const kern_pool_entry* entry); /* NaN: goes before all others */
  void (*evicted)(void* context, double worth);                 /* may be null */
  void* context;
} kern_pool_policy;

/* What recomputing costs and what keeping costs, in any units; finite, none negative, a page has
   bytes. Page tokens are the pool's. */
typedef struct kern_pool_entry_cost {
  double per_token;      /* work of one position, whatever came before */
  double per_token_pair; /* work of one position per position before it (attention) */
  double page_bytes;
  double slot_bytes;
} kern_pool_entry_cost;

/* One lowercase phrase, static. */
const char* kern_pool_status_text(kern_pool_status status);

/* --- pool: INVALID writes a sentence to `why` (cut to `why_size`), which may be null. destroy is
   INVALID, and does nothing, while a handle, a plan or a tree is left. ------------------------ */
kern_pool_status kern_pool_create(const kern_pool_geometry* geometry, kern_pool** out, char* why,
                                  size_t why_size);
kern_pool_status kern_pool_destroy(kern_pool* pool);
kern_pool_status kern_pool_occupancy_now(const kern_pool* pool, kern_pool_occupancy* out);

/* --- leases. `missing` may be null. `retire` takes the lease over when it is OK. -------------- */
kern_pool_status kern_pool_lease_take(kern_pool* pool, uint32_t tokens, kern_pool_lease** out,
                                      kern_pool_amount* missing);
kern_pool_status kern_pool_fork(kern_pool_lease* lease, uint32_t len, uint32_t tokens,
                                kern_pool_lease** out, kern_pool_copies* copies,
                                kern_pool_amount* missing);
kern_pool_status kern_pool_checkpoint_take(kern_pool_lease* lease, uint32_t len,
                                           kern_pool_checkpoint** out, kern_pool_copies* copies,
                                           kern_pool_amount* missing);
kern_pool_status kern_pool_retire(kern_pool_lease* lease, uint32_t len, kern_pool_checkpoint** out);
/* Null is allowed and does nothing, as for every `give_back`. */
void kern_pool_lease_give_back(kern_pool_lease* lease);
/* Writes up to `capacity` entries of the page table, position 0 first; returns how many it has. */
size_t kern_pool_lease_pages(const kern_pool_lease* lease, uint32_t* pages, size_t capacity);
uint32_t kern_pool_lease_slot(const kern_pool_lease* lease);
uint32_t kern_pool_lease_writable_from(const kern_pool_lease* lease);

/* --- checkpoints, and host memory ------------------------------------------------------------ */
kern_pool_status kern_pool_restore(const kern_pool_checkpoint* checkpoint, uint32_t len,
                                   uint32_t tokens, kern_pool_lease** out, kern_pool_copies* copies,
                                   kern_pool_amount* missing);
kern_pool_status kern_pool_park(const kern_pool_checkpoint* checkpoint, kern_pool_parked** out,
                                kern_pool_transfers** to_host, kern_pool_amount* missing);
kern_pool_status kern_pool_wake(const kern_pool_parked* parked, uint32_t len,
                                kern_pool_checkpoint** out, kern_pool_transfers** to_device,
                                kern_pool_amount* missing);
kern_pool_status kern_pool_checkpoint_share(const kern_pool_checkpoint* checkpoint,
                                            kern_pool_checkpoint** out);
uint32_t kern_pool_checkpoint_len(const kern_pool_checkpoint* checkpoint);
uint32_t kern_pool_checkpoint_slot(const kern_pool_checkpoint* checkpoint);
kern_pool_status kern_pool_parked_share(const kern_pool_parked* parked, kern_pool_parked** out);
uint32_t kern_pool_parked_len(const kern_pool_parked* parked);
void kern_pool_checkpoint_give_back(kern_pool_checkpoint* checkpoint);
void kern_pool_parked_give_back(kern_pool_parked* parked);
/* A plan is the caller's to give back; `transfers_list` is valid until then. */
const kern_pool_transfer* kern_pool_transfers_list(const kern_pool_transfers* plan, size_t* count);
void kern_pool_transfers_give_back(kern_pool_transfers* plan);

/* --- views: reading one is STALE once a place was granted, frozen or given back since it was
   taken, INVALID if there is room for fewer than `page_count`. --------------------------------- */
kern_pool_status kern_pool_view_lease(const kern_pool_lease* lease, kern_pool_view* out);
kern_pool_status kern_pool_view_checkpoint(const kern_pool_checkpoint* checkpoint,
                                           kern_pool_view* out);
kern_pool_status kern_pool_view_parked(const kern_pool_parked* parked, kern_pool_parked_view* out);
/* The pages from position 0. */
kern_pool_status kern_pool_view_pages(const kern_pool_view* view, uint32_t* pages, size_t capacity);
/* The bytes of host memory where they begin. */
kern_pool_status kern_pool_view_offsets(const kern_pool_parked_view* view, uint64_t* offsets,
                                        size_t capacity);

/* --- prefix tree. `create`: least recently hit goes first. `create_with` and `create_by_cost` take
   an order for the entries of each tier, null for that one; by cost, the recompute cost a byte
   decides, aged. What they point at is copied; a policy's context must outlive the tree. `insert`
   takes the handle over when it is OK; `fresh` (may be null) is 0 if there was an entry already,
   which stays. ----------------------- */
kern_pool_status kern_pool_tree_create(kern_pool* pool, kern_pool_tree** out);
kern_pool_status kern_pool_tree_create_with(kern_pool* pool, const kern_pool_policy* resident,
                                            const kern_pool_policy* parked, kern_pool_tree** out);
kern_pool_status kern_pool_tree_create_by_cost(kern_pool* pool,
                                               const kern_pool_entry_cost* resident,
                                               const kern_pool_entry_cost* parked,
                                               kern_pool_tree** out);
void kern_pool_tree_give_back(kern_pool_tree* tree);
kern_pool_status kern_pool_tree_insert(kern_pool_tree* tree, const int32_t* tokens, size_t count,
                                       kern_pool_checkpoint* checkpoint, int* fresh);
kern_pool_status kern_pool_tree_insert_parked(kern_pool_tree* tree, const int32_t* tokens,
                                              size_t count, kern_pool_parked* parked, int* fresh);
/* The longest usable proper prefix: its length is that of the handle. `lookup_any` writes one of
   its two handles, and null to the other. */
kern_pool_status kern_pool_tree_lookup(kern_pool_tree* tree, const int32_t* tokens, size_t count,
                                       kern_pool_checkpoint** out);
kern_pool_status kern_pool_tree_lookup_any(kern_pool_tree* tree, const int32_t* tokens,
                                           size_t count, kern_pool_checkpoint** checkpoint,
                                           kern_pool_parked** parked);
/* OK: that much is free now. BUSY: leases or handles in hand hold the rest; nothing went if more is
   missing than is frozen at all. `done`, which may be null, is written in both cases. */
kern_pool_status kern_pool_tree_evict(kern_pool_tree* tree, kern_pool_amount missing,
                                      kern_pool_evicted* done);
/* The same until `room_for` can be parked. */
kern_pool_status kern_pool_tree_evict_parked(kern_pool_tree* tree,
                                             const kern_pool_checkpoint* room_for,
                                             kern_pool_evicted* done);
/* Takes out the checkpoint worth least, with its tokens (as many as its length). INVALID, and
   nothing goes, if `capacity` is less than a full row has positions. */
kern_pool_status kern_pool_tree_evict_to_park(kern_pool_tree* tree, kern_pool_checkpoint** out,
                                              int32_t* tokens, size_t capacity);
/* How many entries each tier has; either may be null. */
kern_pool_status kern_pool_tree_entries(const kern_pool_tree* tree, uint32_t* resident,
                                        uint32_t* parked);

#ifdef __cplusplus
}
#endif

/* A scheduler in C: one sequence at a time, many conversations, each turn restored from the one
 * before. What no longer fits on the device goes to host memory and comes back when its user does;
 * what goes first is what is recomputed with least work for the bytes it frees.
 *
 * The memory is two arrays and a block of host bytes; the toy model adds up what it reads there, so
 * that a plan executed wrongly is seen in the sums. */

#include <kern/pool/pool_c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  PAGE_TOKENS = 4,
  PAGES = 12,
  SLOTS = 4,
  ROW = 6,
  HOST = 640,
  USERS = 6,
  TURNS = 3,
  TURN = 7
};

static int32_t pages[PAGES][PAGE_TOKENS];
static int64_t slots[SLOTS];
static unsigned char host[HOST];
static unsigned restored_from_host, restored;

/* Everything that is not expected here ends the program: the sizes above fit. */
static void must(kern_pool_status status, const char* what) {
  if (status == KERN_POOL_OK) return;
  fprintf(stderr, "%s: %s\n", what, kern_pool_status_text(status));
  exit(1);
}

static void execute_copies(const kern_pool_copies* copies) {
  if (copies->page_to != 0)
    memcpy(pages[copies->page_to], pages[copies->page_from], sizeof pages[0]);
  if (copies->slot_to != 0) slots[copies->slot_to] = slots[copies->slot_from];
}

static void execute_transfers(kern_pool_transfers* plan, int to_host) {
  size_t count = 0;
  const kern_pool_transfer* list = kern_pool_transfers_list(plan, &count);
  for (size_t i = 0; i < count; ++i) {
    unsigned char* there = host + list[i].host_offset;
    void* here = list[i].is_slot ? (void*)&slots[list[i].device] : (void*)pages[list[i].device];
    const size_t bytes = list[i].is_slot ? sizeof slots[0] : sizeof pages[0];
    if (to_host)
      memcpy(there, here, bytes);
    else
      memcpy(here, there, bytes);
  }
  kern_pool_transfers_give_back(plan);
}

/* The checkpoint worth least goes to host memory; 0: there is none. */
static int evict_one(kern_pool_tree* tree) {
  int32_t tokens[ROW * PAGE_TOKENS];
  kern_pool_checkpoint* leaving = NULL;
  if (kern_pool_tree_evict_to_park(tree, &leaving, tokens, ROW * PAGE_TOKENS) != KERN_POOL_OK)
    return 0;
  kern_pool_parked* parked = NULL;
  kern_pool_transfers* plan = NULL;
  must(kern_pool_tree_evict_parked(tree, leaving, NULL), "make room in host memory");
  must(kern_pool_park(leaving, &parked, &plan, NULL), "park");
  execute_transfers(plan, 1);
  must(kern_pool_tree_insert_parked(tree, tokens, kern_pool_parked_len(parked), parked, NULL),
       "insert parked");
  kern_pool_checkpoint_give_back(leaving);
  return 1;
}

/* The longest prefix known, awake; null if there is none. */
static kern_pool_checkpoint* find(kern_pool_tree* tree, const int32_t* tokens, uint32_t count) {
  kern_pool_checkpoint* checkpoint = NULL;
  kern_pool_parked* parked = NULL;
  if (kern_pool_tree_lookup_any(tree, tokens, count, &checkpoint, &parked) != KERN_POOL_OK)
    return NULL;
  if (checkpoint != NULL) return checkpoint;
  kern_pool_transfers* plan = NULL;
  kern_pool_status status;
  do {
    status = kern_pool_wake(parked, kern_pool_parked_len(parked), &checkpoint, &plan, NULL);
  } while (status == KERN_POOL_BUSY && evict_one(tree));
  must(status, "wake");
  execute_transfers(plan, 0);
  kern_pool_parked_give_back(parked);
  ++restored_from_host;
  return checkpoint;
}

/* Computes `tokens`, what is known of them excepted, and returns the sum that the model reads. */
static int64_t run(kern_pool* pool, kern_pool_tree* tree, const int32_t* tokens, uint32_t count) {
  kern_pool_checkpoint* prefix = find(tree, tokens, count);
  kern_pool_lease* lease = NULL;
  kern_pool_copies copies = {0, 0, 0, 0};
  kern_pool_status status;
  uint32_t at = prefix == NULL ? 0 : kern_pool_checkpoint_len(prefix);
  do {
    status = prefix == NULL ? kern_pool_lease_take(pool, count, &lease, NULL)
                            : kern_pool_restore(prefix, at, count, &lease, &copies, NULL);
  } while (status == KERN_POOL_BUSY && evict_one(tree));
  must(status, "lease");
  execute_copies(&copies);
  kern_pool_view view; /* of this moment: it is read before the pool is asked again */
  uint32_t table[ROW];
  kern_pool_checkpoint_give_back(prefix);
  must(kern_pool_view_lease(lease, &view), "view");
  must(kern_pool_view_pages(&view, table, ROW), "view's pages");
  const uint32_t slot = view.slot;
  if (prefix == NULL) slots[slot] = 0;
  restored += prefix != NULL;
  for (; at < count; ++at) {
    pages[table[at / PAGE_TOKENS]][at % PAGE_TOKENS] = tokens[at];
    slots[slot] += tokens[at];
  }
  int64_t sum = slots[slot];
  for (uint32_t i = 0; i < count; ++i)
    sum += (int64_t)(i + 1) * pages[table[i / PAGE_TOKENS]][i % PAGE_TOKENS];

  kern_pool_checkpoint* checkpoint = NULL;
  must(kern_pool_retire(lease, count, &checkpoint), "retire");
  must(kern_pool_tree_insert(tree, tokens, count, checkpoint, NULL), "insert");
  return sum;
}

int main(void) {
  const kern_pool_geometry geometry = {PAGE_TOKENS, PAGES,           SLOTS,          1, ROW, 0,
                                       HOST,        sizeof pages[0], sizeof slots[0]};
  kern_pool* pool = NULL;
  kern_pool_tree* tree = NULL;
  char why[160] = "";
  if (kern_pool_create(&geometry, &pool, why, sizeof why) != KERN_POOL_OK) {
    fprintf(stderr, "%s\n", why);
    return 1;
  }
  const kern_pool_entry_cost cost = {8, 1, sizeof pages[0], sizeof slots[0]};
  must(kern_pool_tree_create_by_cost(pool, &cost, NULL, &tree), "tree");
  int wrong = 0;
  for (uint32_t turn = 1; turn <= TURNS; ++turn)
    for (int32_t user = 1; user <= USERS; ++user) {
      int32_t tokens[TURNS * TURN];
      int64_t expected = 0;
      for (uint32_t i = 0; i < turn * TURN; ++i) {
        tokens[i] = user * 1000 + (int32_t)i;
        expected += (int64_t)(i + 2) * tokens[i];
      }
      wrong += run(pool, tree, tokens, turn * TURN) != expected;
    }
  kern_pool_tree_give_back(tree);
  must(kern_pool_destroy(pool), "destroy");
  printf("%u turns, %u restored, %u of them from host memory, %d wrong\n", USERS * TURNS, restored,
         restored_from_host, wrong);
  return wrong != 0 || restored_from_host == 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An ordered set whose nodes lie inside the elements: by key, lexicographically, then by address of the node, so that equal
 * keys are no error. A treap; every function takes O(log n) expected, in recursion of that depth. Allocates nothing.
 *
 * A zeroed struct is an empty tree. Not thread-safe.
 */
#ifndef B200_REPLAY_TREE_H
#define B200_REPLAY_TREE_H

#include <stddef.h>
#include <stdint.h>

struct replay_node {
  struct replay_node *left, *right;
  uint64_t key[3]; /* the element's owner sets it before it inserts, and leaves it alone until it has removed */
  uint32_t priority;
};

struct replay_tree {
  struct replay_node *root;
  uint32_t random;
};

/* pre: node is in no tree. */
void replay_tree_insert(struct replay_tree *tree, struct replay_node *node);
/* pre: node is in this tree. */
void replay_tree_remove(struct replay_tree *tree, struct replay_node *node);
/* The first node with a key of at least (a, b, c); NULL: none. */
struct replay_node *replay_tree_find(const struct replay_tree *tree, uint64_t a, uint64_t b, uint64_t c);
/* The one behind `node`; NULL: none. */
struct replay_node *replay_tree_next(const struct replay_tree *tree, const struct replay_node *node);

/* The struct of `type` whose member `member` is `node`; NULL of NULL. */
#define REPLAY_ELEMENT(node, type, member) ((type *)replay_element((node), offsetof(type, member)))

static inline void *replay_element(struct replay_node *node, size_t offset) {
  return node ? (char *)node - offset : NULL;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/tree.h"

#include <stdbool.h>

/* Negative, 0, positive as in memcmp(); the address of no node is NULL, which comes first. */
static int compare(const uint64_t key[3], const struct replay_node *address, const struct replay_node *node) {
  for (int i = 0; i < 3; i++)
    if (key[i] != node->key[i])
      return key[i] < node->key[i] ? -1 : 1;
  return ((uintptr_t)address > (uintptr_t)node) - ((uintptr_t)address < (uintptr_t)node);
}

static struct replay_node *rotate_right(struct replay_node *root) {
  struct replay_node *left = root->left;
  root->left = left->right;
  left->right = root;
  return left;
}

static struct replay_node *rotate_left(struct replay_node *root) {
  struct replay_node *right = root->right;
  root->right = right->left;
  right->left = root;
  return right;
}

static struct replay_node *insert(struct replay_node *root, struct replay_node *node) {
  if (!root)
    return node;
  if (compare(node->key, node, root) < 0) {
    root->left = insert(root->left, node);
    return root->left->priority > root->priority ? rotate_right(root) : root;
  }
  root->right = insert(root->right, node);
  return root->right->priority > root->priority ? rotate_left(root) : root;
}

void replay_tree_insert(struct replay_tree *tree, struct replay_node *node) {
  tree->random = tree->random * 1664525u + 1013904223u; /* a linear congruential generator, "Numerical Recipes" */
  node->priority = tree->random ^ tree->random >> 16;
  node->left = node->right = NULL;
  tree->root = insert(tree->root, node);
}

/* Both, all of `left` before all of `right`. */
static struct replay_node *join(struct replay_node *left, struct replay_node *right) {
  if (!left || !right)
    return left ? left : right;
  if (left->priority > right->priority) {
    left->right = join(left->right, right);
    return left;
  }
  right->left = join(left, right->left);
  return right;
}

void replay_tree_remove(struct replay_tree *tree, struct replay_node *node) {
  struct replay_node **at = &tree->root;
  while (*at != node)
    at = compare(node->key, node, *at) < 0 ? &(*at)->left : &(*at)->right;
  *at = join(node->left, node->right);
}

/* The first node behind (key, address). */
static struct replay_node *first_behind(const struct replay_tree *tree, const uint64_t key[3],
                                        const struct replay_node *address) {
  struct replay_node *best = NULL;
  for (struct replay_node *at = tree->root; at;) {
    bool behind = compare(key, address, at) < 0;
    best = behind ? at : best;
    at = behind ? at->left : at->right;
  }
  return best;
}

struct replay_node *replay_tree_find(const struct replay_tree *tree, uint64_t a, uint64_t b, uint64_t c) {
  return first_behind(tree, (const uint64_t[3]){a, b, c}, NULL);
}

struct replay_node *replay_tree_next(const struct replay_tree *tree, const struct replay_node *node) {
  return first_behind(tree, node->key, node);
}

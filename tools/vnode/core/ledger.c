/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node's own count of what it was asked to do, in the format of interpose/record/record.def. Written by the destructor
 * of the library, in one file: a process that ends by a signal or by _exit leaves none.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

struct gemm_row {
  struct vnode_gemm_key key;
  uint64_t calls;
  struct gemm_row *next;
};

struct collective_row {
  const char *op, *dtype;
  int nranks;
  uint64_t calls, bytes;
  struct collective_row *next;
};

static struct gemm_row *gemms;
static struct collective_row *collectives;
static uint64_t lost; /* no host memory for a row */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const char *const owner_names[VNODE_OWNER_COUNT] = {[VNODE_OWNER_PYTORCH] = "pytorch",
                                                           [VNODE_OWNER_NCCL] = "nccl",
                                                           [VNODE_OWNER_CUBLAS] = "cublas",
                                                           [VNODE_OWNER_OTHER] = "other"};

static bool same_gemm(const struct vnode_gemm_key *a, const struct vnode_gemm_key *b) {
  return a->m == b->m && a->n == b->n && a->k == b->k && a->batch == b->batch && a->trans_a == b->trans_a &&
         a->trans_b == b->trans_b && !strcmp(a->api, b->api) && !strcmp(a->type_a, b->type_a) &&
         !strcmp(a->type_b, b->type_b) && !strcmp(a->type_d, b->type_d) && !strcmp(a->compute, b->compute) &&
         !strcmp(a->epilogue, b->epilogue);
}

void vnode_ledger_gemm(const struct vnode_gemm_key *key) {
  if (vnode_forked())
    return;
  vnode_mark_used();
  pthread_mutex_lock(&lock);
  struct gemm_row **link = &gemms;
  while (*link && !same_gemm(&(*link)->key, key))
    link = &(*link)->next;
  if (!*link && (*link = calloc(1, sizeof **link)))
    (*link)->key = *key;
  if (*link)
    (*link)->calls++;
  else
    lost++;
  pthread_mutex_unlock(&lock);
}

void vnode_ledger_collective(const char *op, const char *dtype, int nranks, uint64_t bytes) {
  if (vnode_forked())
    return;
  vnode_mark_used();
  pthread_mutex_lock(&lock);
  struct collective_row **link = &collectives;
  while (*link && (strcmp((*link)->op, op) || strcmp((*link)->dtype, dtype) || (*link)->nranks != nranks))
    link = &(*link)->next;
  if (!*link && (*link = calloc(1, sizeof **link)))
    **link = (struct collective_row){.op = op, .dtype = dtype, .nranks = nranks};
  if (*link) {
    (*link)->calls++;
    (*link)->bytes += bytes;
  } else {
    lost++;
  }
  pthread_mutex_unlock(&lock);
}

static long long ns_of(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (long long)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* record.def's names of roles: by transposes, in cuBLAS's column-major terms. */
static const char *role_of(const struct vnode_gemm_key *key) {
  if (key->batch > 1)
    return "batched";
  if (key->trans_a == 'T' && key->trans_b == 'N')
    return "fprop";
  if (key->trans_a == 'N' && key->trans_b == 'N')
    return "dgrad";
  return key->trans_a == 'N' && key->trans_b == 'T' ? "wgrad" : "other";
}

static void write_header(FILE *file, const char *host) {
  const struct vnode_config *config = vnode_config();
  fprintf(file,
          "{\"t\":\"header\",\"format\":1,\"producer\":\"vnode " B200_VERSION "\",\"run\":\"\",\"arm\":\"\",\"host\":\"%s\","
          "\"pid\":%ld,\"rank\":%d,\"world\":%d,\"local_rank\":-1,\"t_ns\":%lld,\"unix_ns\":%lld,\"versions\":{},"
          "\"gpu\":\"%s\",\"config\":{},\"nccl_env\":{}}\n",
          host, (long)getpid(), config->rank, config->world, ns_of(CLOCK_MONOTONIC), ns_of(CLOCK_REALTIME),
          vnode_gpu()->name);
}

static void write_gemms(FILE *file) {
  for (const struct gemm_row *row = gemms; row; row = row->next) {
    const struct vnode_gemm_key *key = &row->key;
    uint64_t flops = 2 * (uint64_t)key->m * (uint64_t)key->n * (uint64_t)key->k * (uint64_t)key->batch * row->calls;
    fprintf(file,
            "{\"t\":\"gemm\",\"api\":\"%s\",\"role\":\"%s\",\"ta\":\"%c\",\"tb\":\"%c\",\"m\":%" PRId64 ",\"n\":%" PRId64
            ",\"k\":%" PRId64 ",\"batch\":%" PRId64 ",\"a\":\"%s\",\"b\":\"%s\",\"d\":\"%s\",\"compute\":\"%s\","
            "\"epilogue\":\"%s\",\"calls\":%" PRIu64 ",\"flops\":%" PRIu64 "}\n",
            key->api, role_of(key), key->trans_a, key->trans_b, key->m, key->n, key->k, key->batch, key->type_a, key->type_b,
            key->type_d, key->compute, key->epilogue, row->calls, flops);
  }
}

static void write_collectives(FILE *file) {
  for (const struct collective_row *row = collectives; row; row = row->next)
    fprintf(file,
            "{\"t\":\"coll\",\"op\":\"%s\",\"dtype\":\"%s\",\"nranks\":%d,\"calls\":%" PRIu64 ",\"bytes\":%" PRIu64 "}\n",
            row->op, row->dtype, row->nranks, row->calls, row->bytes);
}

static void write_memory(FILE *file) {
  for (int owner = 0; owner < VNODE_OWNER_COUNT; owner++) {
    struct vnode_owner_count total = {0};
    for (int device = 0; device < VNODE_MAX_DEVICES; device++) {
      struct vnode_owner_count count;
      vnode_owner_counts(device, (enum vnode_owner)owner, &count);
      total.current += count.current;
      total.peak += count.peak; /* exact for the usual one device a process */
      total.allocs += count.allocs;
      total.frees += count.frees;
      total.failed += count.failed;
    }
    fprintf(file,
            "{\"t\":\"alloc\",\"owner\":\"%s\",\"current\":%" PRIu64 ",\"peak\":%" PRIu64 ",\"allocs\":%" PRIu64
            ",\"frees\":%" PRIu64 ",\"failed\":%" PRIu64 "}\n",
            owner_names[owner], total.current, total.peak, total.allocs, total.frees, total.failed);
  }
}

static void write_node(FILE *file) {
  static const char *const orders[] = {
      [VNODE_ORDER_EAGER] = "eager", [VNODE_ORDER_DEFERRED] = "deferred", [VNODE_ORDER_ADVERSARIAL] = "adversarial"};
  const struct vnode_config *config = vnode_config();
  fprintf(file, "{\"t\":\"node\",\"order\":\"%s\",\"seed\":%" PRIu64 ",\"races\":%" PRIu64 ",\"modelled_ns\":%" PRId64 "}\n",
          orders[config->order], config->seed, vnode_race_count(), vnode_modelled_ns());
}

static void make_folders(const char *path) {
  char partial[4096];
  for (size_t i = 1; path[i] && i < sizeof partial - 1; i++)
    if (path[i] == '/') {
      memcpy(partial, path, i);
      partial[i] = 0;
      mkdir(partial, 0777);
    }
}

__attribute__((destructor)) static void write_ledger(void) {
  if (!vnode_used() || vnode_forked() || !vnode_config()->log_dir || pthread_mutex_trylock(&lock))
    return;
  char host[256] = "", path[4096];
  gethostname(host, sizeof host - 1);
  snprintf(path, sizeof path, "%s/%s-r%d-%ld.node.jsonl", vnode_config()->log_dir, host, vnode_config()->rank,
           (long)getpid());
  make_folders(path);
  FILE *file = fopen(path, "we");
  if (!file) {
    vnode_say("ledger %s: %s", path, strerror(errno));
  } else {
    write_header(file, host);
    write_gemms(file);
    write_collectives(file);
    write_memory(file);
    write_node(file);
    if (lost)
      fprintf(file, "{\"t\":\"drop\",\"what\":\"gemm or coll\",\"count\":%" PRIu64 "}\n", lost);
    fprintf(file, "{\"t\":\"end\",\"t_ns\":%lld}\n", ns_of(CLOCK_MONOTONIC));
    fclose(file);
  }
  pthread_mutex_unlock(&lock);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Says of products whether the rules of cuBLASLt take them. One on each line of stdin:
 *   CAPABILITY A B C D (numbers of cudaDataType) MODE_A MODE_B TRANS_A TRANS_B M N K LDA LDB LDD BATCH EPILOGUE BIAS_TYPE
 * and on stdout "taken" or the first rule that it breaks. Exit status 1 at a line that is not such.
 */
#include <inttypes.h>
#include <stdio.h>

#include "tests/vnode_blas/narrow_rules.h"

static const char *judge(const struct combination *x) {
  for (int i = 0; i < NARROW_RULES; i++)
    if (!narrow_rules[i].holds(x))
      return narrow_rules[i].name;
  return "taken";
}

int main(void) {
  char line[400];
  while (fgets(line, sizeof line, stdin)) {
    struct combination x = {0};
    int types[4], modes[2];
    int64_t lda, ldb, ldd;
    int read = sscanf(line,
                      "%d %d %d %d %d %d %d %c %c %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64
                      " %d %" SCNu32 " %d",
                      &x.capability, &types[0], &types[1], &types[2], &types[3], &modes[0], &modes[1], &x.trans_a,
                      &x.trans_b, &x.m, &x.n, &x.k, &lda, &ldb, &ldd, &x.batch, &x.epilogue, &x.bias_type);
    if (read != 18) {
      fprintf(stderr, "narrow_ask: %.100s: %d of 18 values\n", line, read);
      return 1;
    }
    x.a = (cudaDataType)types[0], x.b = (cudaDataType)types[1], x.c = (cudaDataType)types[2], x.d = (cudaDataType)types[3];
    x.mode_a = (enum mode)modes[0], x.mode_b = (enum mode)modes[1];
    x.pad_a = lda - (x.trans_a == 'N' ? x.m : x.k);
    x.pad_b = ldb - (x.trans_b == 'N' ? x.k : x.n);
    x.pad_d = ldd - x.m;
    puts(judge(&x));
  }
  return 0;
}

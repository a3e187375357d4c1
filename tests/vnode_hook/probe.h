/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of every shape that a vendor's library could have, behind generated entries: what they got comes back. */
#ifndef VNODE_HOOK_PROBE_H
#define VNODE_HOOK_PROBE_H

struct probe_small {
  int a, b, c, d, e; /* returned through memory */
};
struct probe_id {
  char bytes[128]; /* passed on the stack, as ncclUniqueId */
};

/* Nineteen arguments, as cublasGemmEx; the sum of i times the i-th. */
long probeIntegers(long a1, long a2, long a3, long a4, long a5, long a6, long a7, long a8, long a9, long a10, long a11,
                   long a12, long a13, long a14, long a15, long a16, long a17, long a18, long a19);
/* Ten floating arguments between integers. */
double probeDoubles(double a1, int i1, double a2, double a3, double a4, int i2, double a5, double a6, double a7, double a8,
                    double a9, double a10);
float probeFloat(float a);
struct probe_small probeStructure(int first);
int probeById(void **out, int ranks, struct probe_id id, int rank);
const char *probeText(int which);
/* Module of the return address. */
const char *probeCaller(void);
/* What the function itself sees of its own library's function. */
int probeInside(int value);
int probeStatus(int value);
int probeStatus_ptsz(int value); /* not defined: a variant */
int ncclProbe(int value);
int pncclProbe(int value);
void probeMissing(void); /* not defined: a trap */
int probeCalls(void);
/* The status that the hooks told the library last. */
int probeFailed(void);

#endif

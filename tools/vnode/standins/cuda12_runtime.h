/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Included before every source of the runtime that is compiled for CUDA 12 (12.6 to 12.8). The sources are written against
 * the headers of CUDA 13, where the newest binary interface of a function has its plain name; in CUDA 12 it has a suffix.
 * The interfaces that have the plain names there are in cudart_12.c.
 */
#ifndef VNODE_STANDINS_CUDA12_RUNTIME_H
#define VNODE_STANDINS_CUDA12_RUNTIME_H

#include <cuda.h>
#include <cuda_runtime_api.h>

#undef cudaStreamGetCaptureInfo /* a macro for _v2 */
#define cudaStreamGetCaptureInfo cudaStreamGetCaptureInfo_v3
#define cudaStreamUpdateCaptureDependencies cudaStreamUpdateCaptureDependencies_v2
#define cudaGraphAddDependencies cudaGraphAddDependencies_v2
#define cudaGraphRemoveDependencies cudaGraphRemoveDependencies_v2
#define cudaGraphAddNode cudaGraphAddNode_v2
#define cudaGraphGetEdges cudaGraphGetEdges_v2
#define cudaGraphNodeGetDependencies cudaGraphNodeGetDependencies_v2
#define cudaGraphNodeGetDependentNodes cudaGraphNodeGetDependentNodes_v2
#define cudaMemAdvise cudaMemAdvise_v2
#define cudaMemPrefetchAsync cudaMemPrefetchAsync_v2

/* Driver functions that the runtime calls. */
#define cuMemAdvise cuMemAdvise_v2
#define cuMemPrefetchAsync cuMemPrefetchAsync_v2

#endif

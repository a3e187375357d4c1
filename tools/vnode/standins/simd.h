/* SPDX-License-Identifier: Apache-2.0 */
/*
 * VNODE_SIMD on a function: the compiler makes an AVX2 and a baseline version, the loader picks one. Results are the same,
 * because nothing here is contracted or reassociated. Off under sanitizers, whose run time is not up when the loader asks.
 */
#ifndef VNODE_SIMD_H
#define VNODE_SIMD_H

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define VNODE_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define VNODE_SANITIZED 1
#endif

#if defined(__x86_64__) && !defined(VNODE_SANITIZED)
#define VNODE_SIMD __attribute__((target_clones("avx2", "default")))
#else
#define VNODE_SIMD
#endif

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* page.css as a text that ends with 0. */
    .section .rodata
    .global compare_page_style
    .hidden compare_page_style
    .type compare_page_style, @object
compare_page_style:
    .incbin B200_PAGE_STYLE
    .byte 0
    .size compare_page_style, . - compare_page_style
    .section .note.GNU-stack, "", @progbits

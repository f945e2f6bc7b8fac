// SPDX-License-Identifier: MIT OR Apache-2.0
// Numbers of the launches that make a bias of a table, and the table's gradient of the bias's. In
// the common subset of C++, CUDA and GLSL.
#ifndef TANDEM_SRC_PROBLEM_TABLE_H
#define TANDEM_SRC_PROBLEM_TABLE_H

#define TANDEM_TABLE_PAIRS 512  // pairs of an entry of the index that a workgroup takes at a time
#define TANDEM_TABLE_ENTRIES 2048  // entries of the table of a workgroup of reduce_table

#endif

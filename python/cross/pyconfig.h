/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the headers of Python's stable ABI read of pyconfig.h, for 64-bit systems whose Python is
 * not at hand: scripts/wheel --for puts it into a copy of this system's headers. */
#ifndef TANDEM_PYCONFIG_H
#define TANDEM_PYCONFIG_H
#define SIZEOF_SHORT 2
#define SIZEOF_INT 4
#define SIZEOF_LONG __SIZEOF_LONG__
#define SIZEOF_LONG_LONG 8
#define SIZEOF_VOID_P 8
#define SIZEOF_SIZE_T 8
#define SIZEOF_UINTPTR_T 8
#define SIZEOF_WCHAR_T __SIZEOF_WCHAR_T__
#define ALIGNOF_MAX_ALIGN_T 16
#define HAVE_LONG_LONG 1
#define HAVE_STDDEF_H 1
#define HAVE_SYS_STAT_H 1
#define HAVE_SYS_TYPES_H 1
#define HAVE_WCHAR_H 1
#define WITH_THREAD 1
#ifdef _WIN32
#define MS_WINDOWS 1
#define MS_WIN64 1
#define HAVE_DECLSPEC_DLL 1
#define Py_ENABLE_SHARED 1 /* data of Python is imported from its DLL */
#else
#define HAVE_SSIZE_T 1
#define HAVE_SYS_TIME_H 1
#endif
#endif
